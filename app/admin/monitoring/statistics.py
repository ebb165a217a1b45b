"""Compute rates, means and quantiles from sums of cells. Each function takes and returns one value per sample."""

from collections.abc import Mapping, Sequence

import numpy as np

from app.admin.monitoring.sample_cells import (
    ANSWERED,
    BATCHES,
    BUCKETS,
    COMPLETED,
    COMPUTE_S,
    FAILED,
    LATENCY_S,
    PROMPT_TOKENS,
    QUEUE_S,
    REFUSED,
    ROWS,
    TOKENS,
)
from app.admin.monitoring.sample_ring import Doubles
from app.observability.tallies import SECONDS_BUCKETS

_BOUNDS_S = (0.0, *SECONDS_BUCKETS, SECONDS_BUCKETS[-1])
_BOUNDS = np.array(_BOUNDS_S)
_DIGITS = 3

_RATES = {
    "requests_per_s": COMPLETED,
    "failed_per_s": FAILED,
    "refused_per_s": REFUSED,
    "tokens_per_s": TOKENS,
    "prompt_tokens_per_s": PROMPT_TOKENS,
}
_MEANS_MS = {"latency_ms": LATENCY_S, "queue_ms": QUEUE_S, "compute_ms": COMPUTE_S}
_QUANTILES_MS = {"p50_ms": 0.5, "p99_ms": 0.99}
NO_TIMES: Mapping[str, None] = dict.fromkeys([*_MEANS_MS, *_QUANTILES_MS])
"""The times of a sample without a request."""


def rates(total: Doubles, span_s: Doubles) -> dict[str, Doubles]:
    """Return figures per second. `total` [n, FIELDS], `span_s` [n]."""
    return {name: np.round(total[:, field] / span_s, _DIGITS) for name, field in _RATES.items()}


def times(total: Doubles) -> dict[str, Doubles]:
    """Return means and quantiles of successful requests in milliseconds; NaN without a request."""
    answered = np.where(total[:, ANSWERED] > 0, total[:, ANSWERED], np.nan)
    means = {name: np.round(total[:, field] / answered * 1e3, _DIGITS) for name, field in _MEANS_MS.items()}
    counts = total[:, BUCKETS:]
    quantiles = {name: np.round(quantile_s(counts, each) * 1e3, _DIGITS) for name, each in _QUANTILES_MS.items()}
    return means | quantiles


def batches(total: Doubles, span_s: Doubles) -> dict[str, Doubles]:
    """Return the rate of batches and steps, and their mean rows; NaN without a batch."""
    number = total[:, BATCHES]
    rows = total[:, ROWS] / np.where(number > 0, number, np.nan)
    return {"batch_rows": np.round(rows, _DIGITS), "batches_per_s": np.round(number / span_s, _DIGITS)}


def quantile_s(counts: Doubles, quantile: float) -> Doubles:
    """Estimate a quantile from the counts [n, buckets], linearly within a bucket; NaN where all are 0.

    As histogram_quantile of Prometheus. Above the last bound it is that bound.
    """
    cumulated = np.cumsum(counts, axis=1)
    number = cumulated[:, -1]
    wanted = quantile * number
    index = np.minimum((cumulated < wanted[:, None]).sum(axis=1), counts.shape[1] - 1)
    within = np.take_along_axis(counts, index[:, None], axis=1)[:, 0]
    below = np.take_along_axis(cumulated, index[:, None], axis=1)[:, 0] - within
    share = (wanted - below) / np.where(within > 0, within, np.nan)
    low, high = _BOUNDS[index], _BOUNDS[index + 1]
    return np.where(number > 0, low + (high - low) * share, np.nan)


def as_lists(columns: dict[str, Doubles]) -> dict[str, list[float]]:
    """Return the columns as JSON takes them; it writes NaN as null."""
    return {name: column.tolist() for name, column in columns.items()}


# The same of one sample, which is written every two seconds: without arrays it takes a tenth of the time.


def latest_rates(row: list[float], span_s: float) -> dict[str, float]:
    """As `rates`, of one row of FIELDS values."""
    return {name: round(row[field] / span_s, _DIGITS) for name, field in _RATES.items()}


def latest_times(row: list[float]) -> dict[str, float | None]:
    """As `times`, of one row of FIELDS values; None without a request."""
    answered, counts = row[ANSWERED], row[BUCKETS:]
    shown: dict[str, float | None] = {**NO_TIMES}
    if answered > 0:
        for name, field in _MEANS_MS.items():
            shown[name] = round(row[field] / answered * 1e3, _DIGITS)
    return shown | quantiles_ms(counts)


def quantiles_ms(counts: Sequence[float]) -> dict[str, float | None]:
    """Return the quantiles of latencies by bucket, in milliseconds; None where all counts are 0."""
    if not any(counts):
        return dict.fromkeys(_QUANTILES_MS)
    return {name: round(_quantile_of_s(counts, each) * 1e3, _DIGITS) for name, each in _QUANTILES_MS.items()}


def latest_batches(row: list[float], span_s: float) -> dict[str, float | None]:
    """As `batches`, of one row of FIELDS values; None without a batch."""
    number = row[BATCHES]
    rows = round(row[ROWS] / number, _DIGITS) if number > 0 else None
    return {"batch_rows": rows, "batches_per_s": round(number / span_s, _DIGITS)}


def _quantile_of_s(counts: Sequence[float], quantile: float) -> float:
    """As `quantile_s`, of counts that are not all 0."""
    wanted, below, index = quantile * sum(counts), 0.0, 0
    while below + counts[index] < wanted:
        below += counts[index]
        index += 1
    low, high = _BOUNDS_S[index], _BOUNDS_S[index + 1]
    return low + (high - low) * (wanted - below) / counts[index]
