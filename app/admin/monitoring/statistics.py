"""Compute rates, means and quantiles from sums of cells, and add up the requests since the start of the server."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
from app.observability.metrics import REJECTED_STATUSES
from app.observability.tallies import SECONDS_BUCKETS
from app.observability.visible_counts import Counts
from frameworks.models.versions.slot import ModelSlot

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


def totals(slots: Iterable[ModelSlot], counts: Counts) -> dict[str, Any]:
    """Return the totals of the registered models, of a size that does not grow with them.

    Times in milliseconds are those of successful requests; None without one. `rows`: of all batches, steps of language
    models left out; absent for a tenant, as batches are shared.
    """
    slots = list(slots)
    generated, prompts = _tokens(slots, counts.tenant)
    shown = {**_requests(counts), "tokens": generated, "prompt_tokens": prompts, **_times(counts)}
    if counts.tenant is None:
        shown["rows"] = sum(
            size * number
            for slot in slots
            for run in slot.identity.runs.values()
            for size, number in run.batches.sizes.items()
        )
    return shown


def _requests(counts: Counts) -> dict[str, int]:
    requests = failed = refused = 0
    for (_, _, status, _), number in counts.requests():
        requests += number
        failed += number * (status >= 400)
        refused += number * (status in REJECTED_STATUSES)
    return {"requests": requests, "failed": failed, "refused": refused}


def _times(counts: Counts) -> dict[str, float | None]:
    buckets, queue_s = [0] * (len(SECONDS_BUCKETS) + 1), 0.0
    for each in counts.each_times():
        queue_s += each.queue_seconds.total
        for index, number in enumerate(each.request_seconds.counts):
            buckets[index] += number
    answered = sum(buckets)
    return {"queue_ms": round(queue_s / answered * 1e3, 3) if answered else None, **quantiles_ms(buckets)}


def _tokens(slots: Iterable[ModelSlot], tenant: str | None) -> tuple[int, int]:
    """Return the generated tokens and those of prompts. `tenant`: None for all of them."""
    runs = [run.generated for slot in slots for run in slot.identity.runs.values()]
    if tenant is None:
        return sum(each.tokens for each in runs), sum(each.prompt_tokens for each in runs)
    own = [each.tenants[tenant] for each in runs if tenant in each.tenants]
    return sum(each.generated for each in own), sum(each.prompt for each in own)
