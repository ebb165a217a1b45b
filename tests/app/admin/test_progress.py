"""The long work that a reader sees: that of its models and collections alone."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from app.admin.progress import WorkDescription, visible_works, work_of
from frameworks.core.progress import working


class View:
    """As a ModelView of a key for the model "mine" and the collection "notes"."""

    @property
    def principal(self) -> "View":
        return self

    def get(self, name: str) -> object:
        return name if name == "mine" else None

    def may_search(self, name: str) -> bool:
        return name == "notes"


@pytest.fixture(autouse=True)
def _works() -> Iterator[None]:
    with ExitStack() as stack:
        for name in ("mine", "secret", "notes"):
            stack.enter_context(working("load", name))
        stack.enter_context(working("download", "mine")).phase("files", 10, "bytes", 4)
        for name in ("mine", "secret", "notes"):
            stack.enter_context(working("index", name, "collection"))
        yield


def test_reader_sees_own_names_only() -> None:
    view: Any = View()
    found = [(each["kind"], each["name"]) for each in visible_works(view)]
    assert found == [("load", "mine"), ("download", "mine"), ("index", "notes")]


def test_model_shows_latest_work() -> None:
    work = work_of("mine")
    assert work is not None
    assert (work["kind"], work["what"], work["done"], work["total"]) == ("download", "files", 4, 10)
    assert work.keys() == WorkDescription.model_fields.keys()
    assert work_of("absent") is None
