"""Describe the long work of the server for those who may see its model or collection."""

from typing import Any

from pydantic import Field

from app.inference.model_view import ModelView
from app.protocols.shared.bodies import ResponseBody
from frameworks.core.progress import Work, states


class WorkDescription(ResponseBody):
    """A long work that runs."""

    kind: str = Field(description="compile, load, download, quantize or index.")
    subject: str = Field(description="model or collection: whose name it is.")
    name: str
    what: str = Field(description="The current phase in a few words; empty where it has none.")
    done: int
    total: int = Field(description="Of `done` in this phase; 0 where it is not known.")
    unit: str = Field(description="Of `done` and `total`, such as bytes, layers or rows.")
    seconds: float = Field(description="Since the start of the work.")


def visible_works(models: ModelView) -> list[dict[str, Any]]:
    """Return a WorkDescription of each work whose model or collection the reader may see, the oldest first."""

    def is_visible(work: Work) -> bool:
        if work.subject == "collection":
            return models.principal.may_search(work.name)
        return models.get(work.name) is not None

    return [each.plain() for each in states(is_visible)]


def work_of(model: str) -> dict[str, Any] | None:
    """Return a WorkDescription of the work for a model that began last; None without one."""
    found = states(lambda work: work.subject == "model" and work.name == model)
    return found[-1].plain() if found else None
