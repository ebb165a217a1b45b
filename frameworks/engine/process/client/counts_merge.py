"""Merge the counts of an engine process into those of the server."""

from frameworks.engine.contract import RunCounts
from frameworks.engine.process.wire.messages import BatchDeltas, Counts, StepDeltas
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.steps.counts import StepCounts
from frameworks.scheduling.steps.token_feed import TenantTokens


def add_counts(counts: RunCounts, message: Counts) -> None:
    """Add the growth since the last message."""
    if message.batches is not None:
        _add_batches(counts.batches, message.batches)
    if message.steps is not None:
        _add_steps(counts.generated, message.steps)


def _add_batches(counts: BatchCounts, more: BatchDeltas) -> None:
    counts.sizes.update(more.sizes)
    counts.split.update(more.split)
    for rows, seconds in more.seconds.items():
        counts.seconds[rows] += seconds
    for tenant, seconds in more.tenant_seconds.items():
        counts.tenant_seconds[tenant] += seconds


def _add_steps(counts: StepCounts, more: StepDeltas) -> None:
    counts.tokens += more.tokens
    counts.prompt_tokens += more.prompt_tokens
    counts.prefix_hit_tokens += more.prefix_hit_tokens
    counts.preemptions += more.preemptions
    counts.texts += more.texts
    counts.proposed_tokens += more.proposed_tokens
    counts.accepted_tokens += more.accepted_tokens
    _add_batches(counts.steps, more.steps)
    for tenant, (prompt, generated) in more.tenants.items():
        total = counts.tenants.setdefault(tenant, TenantTokens())
        total.prompt += prompt
        total.generated += generated
