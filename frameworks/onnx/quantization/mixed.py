"""Choose by measurement which MatMuls of a graph stay in fp32."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import structlog

from frameworks.core.progress import phase, step
from frameworks.onnx.model import OnnxModel
from frameworks.onnx.providers import ProviderChoice
from frameworks.onnx.quantization.graph import ConstantMatMul, QuantizableGraph
from frameworks.onnx.session import open_session
from frameworks.onnx.text_model import OnnxTextModel
from frameworks.quantization.comparison import cosines_of
from frameworks.types import Array, Batch, TensorBatch, TokenBatch, Value

log = structlog.get_logger(__name__)

Model = OnnxModel | OnnxTextModel

TARGET_COSINE = 0.988
"""Of the worst warm-up input. The worst of thousands of other texts is less than twice as far from 1 as theirs."""
_TRIALS = 5
_OUTLIER_FACTOR = 8.0
_TINY = 1e-30
_ROWS = 64
"""Rows of each batch, evenly spread, that are enough to tell what is typical."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """`error`: relative error of the output of the MatMul `name`. `size`: number of its weights, to which its time is
    proportional.
    """

    name: str
    error: float
    size: int

    @property
    def gain(self) -> float:
        """The error that fp32 avoids, divided by its cost."""
        return self.error / self.size


def outliers(order: Sequence[Sensitivity]) -> frozenset[str]:
    """Return the MatMuls that lose many times more than is usual in this graph. They stay in fp32 even for int8. In
    MiniLM it is one of 36, which costs 5 % of the speed and removes a fifth of the distance.
    """
    usual = median(each.gain for each in order)
    return frozenset(each.name for each in order if each.gain > _OUTLIER_FACTOR * max(usual, _TINY))


def choose_unquantized(
    graph: QuantizableGraph,
    original: Model,
    open_model: Callable[[Path], Model],
    batches: Sequence[Batch],
    folder: Path,
    target_cosine: float | None = TARGET_COSINE,
) -> frozenset[str]:
    """Return the names of the MatMuls to leave in fp32.

    With a `target_cosine`: as few as a few trials show are needed for the worst input to reach it, or all of them.
    Without: only the outliers. `open_model`: opens a graph's file as the original's entry does. `folder`: for temporary
    files.
    """
    order = rank_by_gain(graph, original, batches, folder)
    if target_cosine is None:
        return outliers(order)
    expected = [original.infer(batch) for batch in batches]
    trial = folder / "trial.onnx"

    def worst_cosine(count: int) -> float:
        graph.write(trial, frozenset(each.name for each in order[:count]))
        answers = [open_model(trial).infer(batch) for batch in batches]
        for file in folder.glob("trial.onnx*"):
            file.unlink()
        return float(cosines_of(expected, answers, batches).min())

    count = find_fewest(worst_cosine, [each.error for each in order], target_cosine)
    log.info("MatMuls left in fp32", count=count, of=len(order))
    return frozenset(each.name for each in order[:count])


def find_fewest(worst_cosine: Callable[[int], float], errors: Sequence[float], target_cosine: float) -> int:
    """Return the smallest number found, in a few trials, at which the worst cosine reaches `target_cosine`; else all.

    Each trial takes the remaining error as a measure of the distance, which gives the next number.
    """
    total = max(sum(errors), _TINY)
    remaining = [1 - sum(errors[:count]) / total for count in range(len(errors) + 1)]
    too_few, enough = -1, len(errors)
    count = 0
    phase("choosing the products", _TRIALS, "trials")
    for _ in range(_TRIALS):
        step()
        distance = 1 - worst_cosine(count)
        if distance <= 1 - target_cosine:
            enough = count
        else:
            too_few = count
        if enough - too_few <= 1:
            break
        wanted = (1 - target_cosine) / max(distance, _TINY) * remaining[count]
        guess = next((number for number, share in enumerate(remaining) if share <= wanted), len(errors))
        count = min(max(guess, too_few + 1), enough - 1)
    return enough


def rank_by_gain(
    graph: QuantizableGraph, original: OnnxModel | OnnxTextModel, batches: Sequence[Batch], folder: Path
) -> list[Sensitivity]:
    """Return the graph's MatMuls, those first that are best left in fp32. `folder`: for a temporary file."""
    errors = _local_errors(graph, original, batches, folder)
    found = [Sensitivity(each.name, errors[each.name], each.weight.size) for each in graph.matmuls]
    return sorted(found, key=lambda each: each.gain, reverse=True)


def _local_errors(
    graph: QuantizableGraph, original: OnnxModel | OnnxTextModel, batches: Sequence[Batch], folder: Path
) -> dict[str, float]:
    """Return for each MatMul how far quantizing it alone changes its own output, summed over the batches."""
    sources = sorted({each.source for each in graph.matmuls})
    file = folder / "watched.onnx"
    graph.write_with_outputs(file, sources)
    watched = open_session(file, ProviderChoice([("CPUExecutionProvider", {})], None), 1, 1)
    rounded = {each.name: round_weight(each.weight) for each in graph.matmuls}
    errors = dict.fromkeys(rounded, 0.0)
    phase("measuring the products", len(batches), "batches")
    for batch in batches:
        step()
        feeds = _feeds(original, batch)
        computed = [name for name in sources if name not in feeds]
        # ONNX Runtime takes an empty list of names for all names.
        values = feeds | (dict(zip(computed, watched.run(computed, feeds), strict=True)) if computed else {})
        for each in graph.matmuls:
            value = values[each.source]
            if isinstance(value, np.ndarray) and value.size:
                errors[each.name] += _typical_error(value, each, rounded[each.name])
    for written in folder.glob("watched.onnx*"):
        written.unlink()
    return errors


def _typical_error(value: Array, matmul: ConstantMatMul, rounded: Array) -> float:
    """Return squared error by squared output: medians over the rows, mean over the channels. A few rows and channels of
    transformers are hundreds of times larger than all others, and would dominate an average.
    """
    rows = value.reshape(-1, value.shape[-1])
    every = slice(None, None, -(-len(rows) // _ROWS))
    output = rows[every] @ matmul.weight
    error = round_input(rows)[every] @ rounded - output
    usual = np.median(np.square(output), axis=0)
    return float(np.mean(np.median(np.square(error), axis=0) / np.maximum(usual, _TINY)))


def round_input(rows: Array) -> Array:
    """Round as DynamicQuantizeLinear: 256 steps over the range of all values, which includes 0."""
    low, high = min(float(rows.min()), 0.0), max(float(rows.max()), 0.0)
    scale = max((high - low) / 255, _TINY)
    zero = np.round(-low / scale)
    rounded: Array = ((np.clip(np.round(rows / scale) + zero, 0, 255) - zero) * scale).astype(np.float32)
    return rounded


def round_weight(weight: Array) -> Array:
    """Round symmetrically, 127 steps up and down for each output channel (column)."""
    scale = np.maximum(np.abs(weight).max(axis=0), _TINY) / 127
    rounded: Array = (np.round(weight / scale) * scale).astype(np.float32)
    return rounded


def _feeds(model: OnnxModel | OnnxTextModel, batch: Batch) -> dict[str, Value]:
    if isinstance(model, OnnxTextModel) and isinstance(batch, TokenBatch):
        return model.graph_inputs(batch)
    assert isinstance(batch, TensorBatch)
    return batch.inputs
