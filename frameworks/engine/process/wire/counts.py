"""Send the counts of an engine process to the server: the growth since the last message, which the server adds."""

from collections.abc import Sequence
from operator import attrgetter

from frameworks.engine.contract import RunCounts
from frameworks.engine.process.wire.messages import BatchDeltas, Counts, StepDeltas
from frameworks.generation.sequences import StepStats
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.sequences.state_store import SequenceUse
from frameworks.scheduling.steps.counts import StepCounts
from frameworks.scheduling.steps.token_feed import TenantTokens

_COUNTS = (
    "tokens", "prompt_tokens", "prefix_hit_tokens", "preemptions", "texts", "proposed_tokens", "accepted_tokens",
)  # fmt: skip
_NO_COUNTS = (0,) * len(_COUNTS)
_counts_of = attrgetter(*_COUNTS)


class CountsDelta:
    """The growth of the counts of one engine."""

    def __init__(self) -> None:
        self.counts = RunCounts()
        """The engine adds to it; `take` sets it to zero."""
        self._stats: StepStats | None = None
        self._sequences: SequenceUse = {}

    def take(self, stats: Sequence[StepStats], sequences: SequenceUse | None = None) -> Counts | None:
        """Return the growth since the last call; None if nothing has changed. `stats`: of each instance. `sequences`:
        of a model with a state.
        """
        batches, steps = _take_batches(self.counts.batches), _take_steps(self.counts.generated)
        current = _sum(stats)
        changed = None if current == self._stats else current
        self._stats = current
        changed_sequences = None
        if sequences is not None and sequences != self._sequences:
            self._sequences = changed_sequences = sequences
        if batches is None and steps is None and changed is None and changed_sequences is None:
            return None
        return Counts(batches, steps, changed, changed_sequences)


def add_counts(counts: RunCounts, message: Counts) -> None:
    """Add the growth since the last message."""
    if message.batches is not None:
        _add_batches(counts.batches, message.batches)
    steps, more = counts.generated, message.steps
    if more is not None:
        for name in _COUNTS:
            setattr(steps, name, getattr(steps, name) + getattr(more, name))
        _add_batches(steps.steps, more.steps)
        for tenant, (prompt, generated) in more.tenants.items():
            total = steps.tenants.setdefault(tenant, TenantTokens())
            total.prompt += prompt
            total.generated += generated


def _add_batches(counts: BatchCounts, more: BatchDeltas) -> None:
    counts.sizes.update(more.sizes)
    counts.split.update(more.split)
    for rows, seconds in more.seconds.items():
        counts.seconds[rows] += seconds
    for tenant, seconds in more.tenant_seconds.items():
        counts.tenant_seconds[tenant] += seconds


def _take_steps(steps: StepCounts) -> StepDeltas | None:
    batches = _take_batches(steps.steps)
    # Taken with the last of each burst of requests, also those for tensors: no objects are made for nothing.
    counts = _counts_of(steps)
    if batches is None and not steps.tenants and counts == _NO_COUNTS:
        return None
    # The requests that run have references to the objects of their tenants.
    tenants = {name: (each.prompt, each.generated) for name, each in steps.tenants.items()}
    tenants = {name: tokens for name, tokens in tenants.items() if tokens != (0, 0)}
    if batches is None and not tenants and counts == _NO_COUNTS:
        return None
    deltas = StepDeltas(**dict(zip(_COUNTS, counts, strict=True)), steps=batches or BatchDeltas(), tenants=tenants)
    for name in _COUNTS:
        setattr(steps, name, 0)
    for each in steps.tenants.values():
        each.prompt = each.generated = 0
    return deltas


def _sum(stats: Sequence[StepStats]) -> StepStats | None:
    if len(stats) < 2:
        return stats[0] if stats else None
    names = StepStats.__dataclass_fields__
    return StepStats(**{name: sum(getattr(each, name) for each in stats) for name in names})


def _take_batches(counts: BatchCounts) -> BatchDeltas | None:
    # Seconds are counted with a run only.
    if not (counts.sizes or counts.split or counts.tenant_seconds):
        return None
    deltas = BatchDeltas(dict(counts.sizes), dict(counts.split), dict(counts.seconds), dict(counts.tenant_seconds))
    for each in (counts.sizes, counts.split, counts.seconds, counts.tenant_seconds):
        each.clear()
    return deltas
