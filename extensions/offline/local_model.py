"""Load the model into this process, with the scheduler and engines of the server."""

import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from app.config import LoadedSettings, Settings
from app.inference.context import RequestContext
from app.inference.pipeline import Pipeline
from app.observability.background import background_task
from app.observability.logs.progress_bars import in_place
from app.observability.metrics import Observer
from app.observability.progress import ProgressReporter
from app.protocols.native.codec import read
from app.protocols.shared.codec import Target
from app.protocols.shared.errors import ProtocolError
from app.server.build import Host, build_inference
from extensions.offline.contract import (
    ANY_SIDE,
    MEDIA,
    Generated,
    RequestRefused,
    RowAnswer,
    RunFailed,
    RunModelDescription,
    Shape,
    WrongCommand,
)
from extensions.offline.media import FILES_PER_REQUEST
from frameworks.core.errors import FieldError, InvalidModel, ModelFailed, OutOfMemory, RequestError, RoundhouseError
from frameworks.core.settings.composites import CompositeModelEntry
from frameworks.generation.types import GenerateAnswer
from frameworks.models.residency.processes import BACKGROUND_NICENESS
from frameworks.models.versions.slot import ModelSlot
from frameworks.scheduling.byte_limit import ByteLimit
from frameworks.types import ModelSpec, ValueSpec

QUEUED_ROWS = 512
"""Texts that batches are chosen from. Texts of one length in characters differ in tokens: with 128 texts a batch of
MiniLM had 3.5 % of padding, with 512 it has 0.9 %, and with 1,024 it has no less.
"""

_NO_BOUND = 2**31 - 1
_TABLES = ("onnx_models", "torch_models")


@asynccontextmanager
async def open_local_model(loaded: LoadedSettings, name: str) -> AsyncIterator["LocalModel"]:
    """Load the model `name` of the settings, and unload it at the end. Raises RunFailed for a model that fails."""
    loaded = _for_a_run(loaded)
    observer = Observer("none", loaded.settings.logging.slow_ms)
    limit = ByteLimit(loaded.settings.server.max_buffered_bytes)
    inference = build_inference(loaded, observer, Host(), limit)
    _refuse_searches(inference.manager.slot(name))
    async with inference.manager as manager:
        try:
            async with background_task(ProgressReporter(_show).run()):
                for each in manager.slots:
                    if name not in each.names:
                        await manager.load(each.name)  # a model of the steps of a composite model
                slot = await manager.load(name)
        except (InvalidModel, ModelFailed, OutOfMemory) as error:
            raise RunFailed(f"MODEL: {error.message}") from error
        try:
            yield LocalModel(inference.pipeline, slot, manager.slots)
        finally:
            await inference.shadowing.close()
            inference.pipeline.close()


def _show(line: str) -> None:
    """Draw the progress of the load, where standard error is a terminal."""
    sys.stderr.write(in_place(line))
    sys.stderr.flush()


def _refuse_searches(slot: ModelSlot) -> None:
    """Raise RunFailed for a composite model that searches a collection: the server has its files open."""
    if isinstance(slot.entry, CompositeModelEntry) and slot.entry.collections:
        kind = slot.framework
        message = f"expected a {kind} without steps that search a collection, got one; send to the server with --url"
        raise RunFailed(f"MODEL: {message}")


class LocalModel:
    """A RunModel. Bodies are decoded by the native API's decoder, answers stay arrays."""

    def __init__(self, pipeline: Pipeline, slot: ModelSlot, slots: Sequence[ModelSlot]) -> None:
        """`slots`: the model, and for a composite model those of its steps."""
        self._pipeline = pipeline
        self.slot = slot
        spec = slot.spec
        assert spec is not None
        self._target = Target(slot.name, slot.version)
        self.rows_per_request = min(slot.limits.max_rows, 32)
        self.concurrency = _concurrency(spec, slot.entry.instances, slot.limits.max_rows, self.rows_per_request)
        self.description = RunModelDescription(
            slot.name, str(spec.task), _shapes(spec.inputs), _shapes(spec.outputs), _identity(slot, spec, slots),
            frozenset(each.name for each in spec.inputs if each.required),
            (spec.image.height or ANY_SIDE, spec.image.width or ANY_SIDE) if spec.image else None,
            () if spec.pipeline is None else spec.pipeline.reads,
            "dense" if spec.text is None else spec.text.vectors,
            0 if spec.generation is None or spec.generation.vision is None else spec.generation.vision.max_images,
        )  # fmt: skip

    async def answer(self, body: bytes) -> RowAnswer:
        request = _OfflineRequest(body, self._target)
        try:
            self._pipeline.admit(request)
            try:
                answer: RowAnswer = await self._pipeline.run(request)
                return answer
            finally:
                request.permit.release()
        except (FieldError, ProtocolError, OutOfMemory, RequestError) as error:
            raise RequestRefused(error.message) from error
        except RoundhouseError as error:
            raise RunFailed(error.message) from error


class _OfflineRequest(RequestContext):
    """The request of one body of a run."""

    def __init__(self, body: bytes, target: Target) -> None:
        super().__init__("offline", "POST", "/infer", time.perf_counter())
        self.read = partial(read, body, target)

    def is_long_to_encode(self, decoded: Any, answer: Any) -> bool:
        return False

    def encode(self, decoded: Any, answer: Any) -> RowAnswer:
        if isinstance(answer, GenerateAnswer):
            choice = answer.choices[0]
            return Generated(choice.text, choice.finish_reason, answer.usage.tokens_generated)
        rows: RowAnswer = answer
        return rows

    def open_stream(self, decoded: Any) -> None:
        raise WrongCommand("stream: expected a whole text, got a stream; leave the option out")


def with_one_model(loaded: LoadedSettings, name: str) -> LoadedSettings:
    """Return the settings with this model only, or with this composite model and those that it runs."""
    models = loaded.settings.models
    names = models_of(loaded, name)
    kept = {
        table: tuple(entry for entry in getattr(models, table) if not names.isdisjoint(entry.names))
        for table in _TABLES
    }
    composites = _composite_tables(loaded.settings, lambda each: [each] if name in each.names else [])
    update = {"models": models.model_copy(update=kept)} | composites
    return replace(loaded, settings=loaded.settings.model_copy(update=update))


def models_of(loaded: LoadedSettings, name: str) -> frozenset[str]:
    """Return the names or aliases of the models that a composite model runs; of another model the given name."""
    parts = (each.models for _, each in loaded.settings.composites() if name in each.names)
    return next(parts, frozenset([name]))


def _for_a_run(loaded: LoadedSettings) -> LoadedSettings:
    """Return the settings without the queue bounds and the deadline of a server: the run bounds its own requests.

    Engine processes get a low priority where the entry of their model names none.
    """
    settings, models = loaded.settings, loaded.settings.models
    unbounded = {"max_queue_size": None, "max_concurrent_requests": None}
    entries = {
        table: tuple(
            entry.model_copy(
                update={**unbounded, "niceness": BACKGROUND_NICENESS if entry.niceness is None else entry.niceness}
            )
            for entry in getattr(models, table)
        )
        for table in _TABLES
    }
    scheduling = {"max_queue_size": _NO_BOUND, "max_concurrent_requests": None, "default_timeout_ms": None}
    update = {
        "models": models.model_copy(update=entries),
        "scheduling": settings.scheduling.model_copy(update=scheduling),
    } | _composite_tables(settings, lambda each: [each.model_copy(update=unbounded)])
    return replace(loaded, settings=settings.model_copy(update=update))


def _composite_tables(settings: Settings, change: Callable[[Any], list[Any]]) -> dict[str, Any]:
    """Return the tables of composite models, with the entries that `change` returns in place of each entry."""
    tables = {table for table, _ in settings.composites()}
    return {table: tuple(new for entry in getattr(settings, table) for new in change(entry)) for table in tables}


def _concurrency(spec: ModelSpec, instances: int, max_rows: int, rows_per_request: int) -> int:
    """Return how many requests are sent at a time."""
    if spec.task == "generate":
        return 2 * max_rows
    # Two batches for each instance: one runs while the next one is formed.
    batches = 2 * instances + 2
    if spec.image or (spec.pipeline is not None and not set(MEDIA).isdisjoint(spec.pipeline.inputs)):
        batches = max(batches, -(-2 * instances * max_rows // FILES_PER_REQUEST))
    # Tensors are large, and those of one shape need no padding.
    return max(batches, QUEUED_ROWS // rows_per_request) if spec.text else batches


def _shapes(values: tuple[ValueSpec, ...]) -> Mapping[str, Shape]:
    return {value.name: value.shape for value in values}


def _identity(slot: ModelSlot, spec: ModelSpec, slots: Sequence[ModelSlot]) -> dict[str, Any]:
    """Return the files of the model with their sizes and times, and what else changes its results."""
    if isinstance(slot.entry, CompositeModelEntry):
        parts = [_identity(each, each.spec, ()) for each in slots if each is not slot and each.spec is not None]
        return {slot.framework: slot.entry.definition, "models": parts}
    path: Path = slot.active.path
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    described = [[str(each.relative_to(path.parent)), each.stat().st_size, each.stat().st_mtime_ns] for each in files]
    return {"path": str(path.resolve()), "files": described, "dtype": spec.dtype}
