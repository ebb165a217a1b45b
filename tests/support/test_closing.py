"""Hooks that end what tests share."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.closing import closed_after


@pytest.mark.parametrize(
    ("path", "is_closed"), [("/tests/web/test_a.py", False), ("/tests/test_b.py", True), (None, True)]
)
def test_closed_after_last_test_of_folder(path: str | None, is_closed: bool) -> None:
    closed: list[bool] = []
    following: object = None if path is None else SimpleNamespace(path=Path(path))
    teardown = closed_after(Path("/tests/web"), lambda: closed.append(True))(following)  # type: ignore[arg-type]
    next(teardown)
    assert not closed
    with pytest.raises(StopIteration):
        next(teardown)
    assert bool(closed) is is_closed
