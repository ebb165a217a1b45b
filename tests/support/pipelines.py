"""Pipelines of tests: entries from tables, specs of models, and parts that are computed with numpy."""

from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np

from extensions.pipelines.checker import Typed, check_pipeline
from extensions.pipelines.engine import PipelineEngine
from extensions.pipelines.graph import Fault
from extensions.pipelines.settings import PipelineEntry
from frameworks.core.timings import Timings
from frameworks.core.vector_search import NamedCollections
from frameworks.engine.contract import EngineRequest, Run
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.types import Array, ModelSpec, TensorBatch, TensorType, TextSpec, ValueSpec


def pipeline(inputs: Any, outputs: Mapping[str, str], *steps: Mapping[str, Any], name: str = "p") -> PipelineEntry:
    return PipelineEntry.model_validate({"name": name, "inputs": inputs, "outputs": outputs, "steps": list(steps)})


def step(name: str, kind: str, inputs: Mapping[str, str], **options: Any) -> dict[str, Any]:
    """Return the table of a built-in step."""
    return {"name": name, "builtin": kind, "inputs": inputs, **options}


def call(name: str, model: str, inputs: Mapping[str, str], **options: Any) -> dict[str, Any]:
    """Return the table of a step that runs a model."""
    return {"name": name, "model": model, "inputs": inputs, **options}


def search(name: str, collection: str, vectors: str, **options: Any) -> dict[str, Any]:
    """Return the table of a step that searches a collection."""
    return {"name": name, "collection": collection, "inputs": {"vectors": vectors}, **options}


def tensor_spec(columns: int, outputs: int, dtype: str = "float32") -> ModelSpec:
    """Return the spec of a model with the input x [-1, columns] and the output y [-1, outputs]."""
    x, y = TensorType(dtype, (-1, columns)), TensorType(dtype, (-1, outputs))
    return ModelSpec("onnx", "tensor", (ValueSpec("x", x),), (ValueSpec("y", y),), "cpu", dtype, 0)


def text_spec(task: Any, labels: tuple[str, ...] = (), size: int | None = None) -> ModelSpec:
    """Return the spec of a model that embeds or classifies texts."""
    ids = ValueSpec("input_ids", TensorType("int64", (-1, -1)))
    text = TextSpec(8, labels=labels, embedding_size=size)
    return ModelSpec("onnx", task, (ids,), (), "cpu", "float32", 0, text=text)


def faults_of(
    entry: PipelineEntry,
    specs: Mapping[str, ModelSpec] = {},
    models: Any = None,
    collections: Mapping[str, int] = {},
) -> list[str]:
    """Return the faults of a pipeline as text."""
    _, faults = check_pipeline(entry, list(specs) if models is None else models, specs, collections=collections)
    return [str(fault) for fault in faults]


def checked(entry: PipelineEntry, specs: Mapping[str, ModelSpec] = {}, collections: Mapping[str, int] = {}) -> Typed:
    """Return a pipeline without faults."""
    typed, faults = check_pipeline(entry, list(specs), specs, collections=collections)
    assert typed is not None, [str(Fault(*fault)) for fault in faults]
    return typed


class NumpyParts:
    """Answer requests of steps by functions: model → function of the request."""

    def __init__(self, specs: Mapping[str, ModelSpec], functions: Mapping[str, Callable[[Any], Any]]) -> None:
        self.specs = dict(specs)
        self._functions = functions
        self.requests: list[tuple[str, EngineRequest]] = []
        self.runs_at_once = False

    def compute_now(self, whole: Run, name: str, make: Callable[[ModelSpec], TensorBatch], step: str) -> Any:
        if not self.runs_at_once:
            return None
        self.requests.append((name, make(self.specs[name])))
        return self._functions[name](self.requests[-1][1])

    async def answer(
        self,
        whole: Run,
        name: str,
        make: Callable[[ModelSpec], EngineRequest],
        step: str,
        timings: Timings | None = None,
    ) -> Any:
        request = make(self.specs[name])
        self.requests.append((name, request))
        answer = self._functions[name](request)
        return await answer if isinstance(answer, Awaitable) else answer


def engine_of(
    entry: PipelineEntry,
    parts: NumpyParts,
    threads: ThreadPoolExecutor,
    collections: NamedCollections | None = None,
) -> PipelineEngine:
    """Return the engine of a pipeline over numpy."""
    dimensions = {} if collections is None else collections.dimensions
    return PipelineEngine(checked(entry, parts.specs, dimensions), cast(Any, parts), threads, collections)


async def ask(engine: PipelineEngine, request: Any, timings: Timings | None = None) -> Any:
    """Send a request with a permit of its own."""
    permit = Permit(RequestLimit("the server", None, None))
    try:
        return await engine.answer(Run(permit, timings or Timings()), request)
    finally:
        permit.release()


def tensors(**values: Any) -> TensorBatch:
    return TensorBatch(values)


def strings(*texts: str) -> Array:
    """Return texts as a tensor."""
    values = np.empty(len(texts), dtype=object)
    values[:] = texts
    return values
