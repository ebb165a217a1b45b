"""Compare a quantized model with its original: similarity of outputs, and speed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import structlog

from frameworks.core.errors import InvalidModel
from frameworks.types import Array, Batch, QuantizationReport, TensorBatch, Value

log = structlog.get_logger(__name__)

DEFAULT_MIN_COSINE = 0.97
_ROUNDS = 3
_LIMIT_S = 10.0

Infer = Callable[[Batch], dict[str, Value]]


@dataclass(frozen=True, slots=True)
class OutputComparison:
    """`cosine_min` and `cosine_mean`: over every row of every numeric output. Times: medians, of all batches."""

    cosine_min: float
    cosine_mean: float
    original_s: float
    quantized_s: float

    def report(self, scheme: str, bytes_before: int, bytes_after: int) -> QuantizationReport:
        """Return the figures with the sizes of the weights."""
        return QuantizationReport(
            scheme,
            self.cosine_min,
            self.cosine_mean,
            round(self.original_s / max(self.quantized_s, 1e-9), 3),
            bytes_before,
            bytes_after,
            round(1e3 * self.original_s, 3),
            round(1e3 * self.quantized_s, 3),
        )


def compare(original: Infer, quantized: Infer, batches: Sequence[Batch]) -> OutputComparison:
    """Run both models on all batches, alternately, for a few rounds; fewer rounds where they are slow."""
    originals = [original(batch) for batch in batches]
    found = cosines_of(originals, [quantized(batch) for batch in batches], batches)
    times: list[tuple[float, float]] = []
    started_s = time.perf_counter()
    while len(times) < _ROUNDS and (not times or time.perf_counter() - started_s < _LIMIT_S):
        times.append((_seconds(original, batches), _seconds(quantized, batches)))
    original_s, quantized_s = median(one for one, _ in times), median(other for _, other in times)
    return OutputComparison(float(found.min()), float(found.mean()), original_s, quantized_s)


def cosines_of(
    originals: Sequence[dict[str, Value]], others: Sequence[dict[str, Value]], batches: Sequence[Batch]
) -> Array:
    """Return one cosine for each row of each output of each batch; [1] without numeric outputs."""
    found = [
        row_cosines(rows, other_rows)
        for batch, one, other in zip(batches, originals, others, strict=True)
        for rows, other_rows in zip(_numeric_outputs(one, batch), _numeric_outputs(other, batch), strict=True)
    ]
    return np.concatenate(found) if found else np.ones(1)


def row_cosines(one: Array, other: Array) -> Array:
    """Return the cosine of each row of two arrays [rows, …]. Two rows of zeros are equal; non-finite values are 0."""
    first, second = (np.nan_to_num(a.reshape(len(a), -1).astype(np.float64), posinf=0, neginf=0) for a in (one, other))
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    both_zero = ~first.any(axis=1) & ~second.any(axis=1)
    found: Array = np.where(both_zero, 1.0, (first * second).sum(axis=1) / np.maximum(lengths, 1e-300))
    return found


def check_cosine(report: QuantizationReport, min_cosine: float | None, path: Path, remedies: str) -> None:
    """Raise InvalidModel where the minimum cosine is below `min_cosine`, or below the default.

    `remedies`: other settings of this framework, for the message.
    """
    wanted = DEFAULT_MIN_COSINE if min_cosine is None else min_cosine
    if report.cosine_min < wanted:
        raise InvalidModel(
            f"{path}: quantized ({report.scheme}) it differs too much from the original: got cosine "
            f"{report.cosine_min:.4f} at worst and {report.cosine_mean:.4f} on average over the warm-up inputs, "
            f"expected min_cosine {wanted:g}; {remedies}, or set min_cosine lower"
        )


def warn_if_slower(report: QuantizationReport, model: str, remedy: str) -> None:
    """Warn of a quantized model that takes longer than its original. `remedy`: the setting that serves the original."""
    if report.speedup < 1:
        log.warning(
            "the quantized model is slower than its original on this CPU, and is served as its entry asks",
            model=model,
            remedy=remedy,
            original_ms=report.original_ms,
            quantized_ms=report.quantized_ms,
        )


def _seconds(infer: Infer, batches: Sequence[Batch]) -> float:
    started_s = time.perf_counter()
    for batch in batches:
        infer(batch)
    return time.perf_counter() - started_s


def _numeric_outputs(outputs: dict[str, Value], batch: Batch) -> list[Array]:
    """Return the float outputs as [rows, …]; without float outputs, the integer ones."""
    arrays = [array for value in outputs.values() if (array := _array(value)) is not None]
    arrays = [array for array in arrays if array.dtype.kind == "f"] or [a for a in arrays if a.dtype.kind in "iub"]
    rows = batch.rows if isinstance(batch, TensorBatch) else None
    # An output without one entry for each row of the batch counts as one row.
    return [a if a.ndim and (rows is None or len(a) == rows) else a.reshape(1, -1) for a in arrays if a.size]


def _array(value: Value) -> Array | None:
    """Return a tensor, or ZipMap's maps of scores as rows."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        rows: list[list[Any]] = [list(item.values()) for item in value]
        return np.asarray(rows) if len({len(row) for row in rows}) == 1 else None
    return None
