"""The built-in steps by name."""

from typing import Any

from extensions.pipelines.settings import StepEntry
from extensions.pipelines.steps.contract import BuiltinStep, StepFault
from extensions.pipelines.steps.images import Crop, ImageStep
from extensions.pipelines.steps.numbers import Concat, Labels, Normalize, Softmax, Threshold, TopK
from extensions.pipelines.steps.texts import Chunk
from frameworks.types import ModelSpec

_MADE: dict[str, type[Any]] = {
    "softmax": Softmax, "top_k": TopK, "normalize": Normalize, "concat": Concat, "threshold": Threshold,
    "chunk": Chunk, "image": ImageStep, "crop": Crop,
}  # fmt: skip
OPTIONS: dict[str, frozenset[str]] = {
    **{name: made.options for name, made in _MADE.items()},
    "labels": Labels.options | {"model"},
    "tokenize": frozenset({"model", "truncate"}),
}
"""Built-in step → the keys of the entry that it reads."""


def make_builtin(entry: StepEntry, spec: ModelSpec | None) -> BuiltinStep | None:
    """Return a built-in step; None for `labels` of a model that is not loaded. `spec`: of the model that it names.

    Raises StepFault.
    """
    assert entry.builtin is not None
    if entry.builtin != "labels":
        made: BuiltinStep = _MADE[entry.builtin](entry)
        return made
    if (entry.labels is None) == (entry.model is None):
        raise StepFault("labels", "expected either labels or model, got both or none; set one of them")
    if entry.labels is not None:
        return Labels(entry, entry.labels)
    if spec is None:
        return None
    source = spec.text or spec.image
    if source is None or not source.labels:
        raise StepFault("model", f'expected a model with labels, got "{entry.model}" without any; set labels')
    return Labels(entry, source.labels)
