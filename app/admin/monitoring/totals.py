"""Add up the requests since the start of the server, as a principal sees them."""

from collections.abc import Iterable
from typing import Any

from app.admin.monitoring.statistics import quantiles_ms
from app.observability.metrics import REJECTED_STATUSES
from app.observability.tallies import SECONDS_BUCKETS
from app.observability.visible_counts import Counts
from frameworks.models.versions.slot import ModelSlot


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
