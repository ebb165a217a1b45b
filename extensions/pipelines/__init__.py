"""Pipelines: graphs of models and steps, checked at the start and served like models. Begin with `loader.py`.

`settings.py` and `table.py` are `[[pipelines]]`, `checker.py` checks the types of a graph, `plan.py` compiles it, and
`engine.py` answers requests by `runs.py`. `steps/` has the built-in steps. Manual: docs/pipelines.md.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from app.extension import Extension, ServerProcess

if TYPE_CHECKING:
    from app.config.tables import ConfigTable


def _tables() -> "Sequence[ConfigTable]":
    from extensions.pipelines.table import TABLE

    return (TABLE,)


def _open(process: ServerProcess) -> None:
    entries: Sequence[Any] = process.loaded.settings.table("pipelines", ())
    if entries:
        from extensions.pipelines.loader import PipelineLoader
        from extensions.pipelines.settings import FRAMEWORK

        process.composites[FRAMEWORK] = PipelineLoader(process.slots, process.models, process.offers)


EXTENSION = Extension(tables=_tables, open=_open)
