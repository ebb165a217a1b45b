"""What quantising each MatMul of a graph does to its own output: one run in fp32 that watches all of their inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frameworks.onnx.providers import ProviderChoice
from frameworks.onnx.quantization.graph import ConstantMatMul, QuantizableGraph
from frameworks.onnx.session import OnnxModel, open_session
from frameworks.onnx.text_model import OnnxTextModel
from frameworks.types import Array, Batch, TensorBatch, TokenBatch, Value

_TINY = 1e-30
_ROWS = 64
"""Of each batch, evenly spread, are enough to tell what is typical."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """`error`: of the output of the MatMul `name`, relative. `size`: its weights, by which its share of a run's time
    goes.
    """

    name: str
    error: float
    size: int

    @property
    def gain(self) -> float:
        """The error that leaving it in fp32 takes away, by what that costs."""
        return self.error / self.size


def by_gain(
    graph: QuantizableGraph, original: OnnxModel | OnnxTextModel, batches: Sequence[Batch], folder: Path
) -> list[Sensitivity]:
    """The graph's MatMuls, those first that are best left in fp32. `folder`: a file is written there and taken away."""
    errors = _local_errors(graph, original, batches, folder)
    found = [Sensitivity(each.name, errors[each.name], each.weight.size) for each in graph.matmuls]
    return sorted(found, key=lambda each: each.gain, reverse=True)


def _local_errors(
    graph: QuantizableGraph, original: OnnxModel | OnnxTextModel, batches: Sequence[Batch], folder: Path
) -> dict[str, float]:
    """Per MatMul how far quantising it alone moves its own output, summed over the batches."""
    sources = sorted({each.source for each in graph.matmuls})
    file = folder / "watched.onnx"
    graph.write_with_outputs(file, sources)
    watched = open_session(file, ProviderChoice([("CPUExecutionProvider", {})], None), 1, 1)
    rounded = {each.name: round_weight(each.weight) for each in graph.matmuls}
    errors = dict.fromkeys(rounded, 0.0)
    for batch in batches:
        feeds = _feeds(original, batch)
        computed = [name for name in sources if name not in feeds]
        # ONNX Runtime takes no names for all names.
        values = feeds | (dict(zip(computed, watched.run(computed, feeds), strict=True)) if computed else {})
        for each in graph.matmuls:
            value = values[each.source]
            if isinstance(value, np.ndarray) and value.size:
                errors[each.name] += _typical_error(value, each, rounded[each.name])
    for written in folder.glob("watched.onnx*"):
        written.unlink()
    return errors


def _typical_error(value: Array, matmul: ConstantMatMul, rounded: Array) -> float:
    """Squared error by squared output, medians over the rows, mean over the channels: a few rows and channels of
    transformers are hundreds of times larger than all others, and an average would see nothing else.
    """
    rows = value.reshape(-1, value.shape[-1])
    every = slice(None, None, -(-len(rows) // _ROWS))
    output = rows[every] @ matmul.weight
    error = round_input(rows)[every] @ rounded - output
    usual = np.median(np.square(output), axis=0)
    return float(np.mean(np.median(np.square(error), axis=0) / np.maximum(usual, _TINY)))


def round_input(rows: Array) -> Array:
    """As DynamicQuantizeLinear: 256 steps over the range of all values, which includes 0."""
    low, high = min(float(rows.min()), 0.0), max(float(rows.max()), 0.0)
    scale = max((high - low) / 255, _TINY)
    zero = np.round(-low / scale)
    rounded: Array = ((np.clip(np.round(rows / scale) + zero, 0, 255) - zero) * scale).astype(np.float32)
    return rounded


def round_weight(weight: Array) -> Array:
    """Symmetric, 127 steps up and down for each output channel (column)."""
    scale = np.maximum(np.abs(weight).max(axis=0), _TINY) / 127
    rounded: Array = (np.round(weight / scale) * scale).astype(np.float32)
    return rounded


def _feeds(model: OnnxModel | OnnxTextModel, batch: Batch) -> dict[str, Value]:
    if isinstance(model, OnnxTextModel) and isinstance(batch, TokenBatch):
        return model.graph_inputs(batch)
    assert isinstance(batch, TensorBatch)
    return batch.inputs
