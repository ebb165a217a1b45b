"""Totals over the steps of a language model."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from frameworks.generation.sequences import StepResult, StepStats
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.steps.token_feed import TenantTokens


@dataclass(slots=True)
class StepCounts:
    """Totals over all steps of a model.

    `prompt_tokens`: tokens of prompts, of which `prefix_hit_tokens` were cached. `preemptions`: sequences that returned
    to the queue for lack of memory. `texts`: sequences that ended. `proposed_tokens`: computed ahead of their texts, of
    which `accepted_tokens` were right. `steps`: steps by their number of sequences.
    """

    tokens: int = 0
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    texts: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    steps: BatchCounts = field(default_factory=BatchCounts, compare=False)
    tenants: dict[str, TenantTokens] = field(default_factory=dict, compare=False)
    """The part of `prompt_tokens` and `tokens` of each named tenant, without those of cancelled sequences."""

    def add(self, result: StepResult, before: StepStats, compute_s: float) -> None:
        """Add the result of a step. `before`: the stats of the step before it."""
        after = result.stats
        if result.num_sequences:
            self.steps.ran(result.num_sequences, compute_s)
        self.texts += len(result.ended)
        for token in result.tokens:
            self.texts += token.finish_reason is not None
        self.tokens += len(result.tokens)
        self.prompt_tokens += after.prompt_tokens - before.prompt_tokens
        self.prefix_hit_tokens += after.prefix_hit_tokens - before.prefix_hit_tokens
        self.preemptions += after.preemptions - before.preemptions
        self.proposed_tokens += result.num_proposed
        self.accepted_tokens += result.num_accepted

    @classmethod
    def total(cls, counts: "Iterable[StepCounts]") -> "StepCounts":
        """Return the current sum of several counts."""
        total = cls()
        for each in counts:
            total.tokens += each.tokens
            total.prompt_tokens += each.prompt_tokens
            total.prefix_hit_tokens += each.prefix_hit_tokens
            total.preemptions += each.preemptions
            total.texts += each.texts
            total.proposed_tokens += each.proposed_tokens
            total.accepted_tokens += each.accepted_tokens
            total.steps.merge(each.steps)
            for tenant, tokens in each.tenants.items():
                merged = total.tenants.setdefault(tenant, TenantTokens())
                merged.prompt += tokens.prompt
                merged.generated += tokens.generated
        return total
