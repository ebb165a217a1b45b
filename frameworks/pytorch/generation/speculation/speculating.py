"""Speculation in a step: add draft tokens to a plan, and verify them with the sampled ones."""

import copy
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from types import MappingProxyType

from frameworks.core.errors import RoundhouseError
from frameworks.pytorch.generation.sampling.rejection import DraftDraw
from frameworks.pytorch.generation.sampling.sampler import Sampled
from frameworks.pytorch.generation.sampling.state import SamplingState
from frameworks.pytorch.generation.sampling.top_k import TieCheck
from frameworks.pytorch.generation.speculation.drafting import DraftProposer
from frameworks.scheduling.speculation.speculator import Speculator
from frameworks.scheduling.steps.scheduler import StepScheduler
from frameworks.scheduling.steps.sequence import Sequence, StepPart, StepPlan

Draws = Mapping[int, Rows[DraftDraw]]
"""The tokens that a draft model drew, by sequence id."""
NO_DRAWS: Draws = MappingProxyType({})
Sequences = Mapping[int, tuple[Sequence, SamplingState]]
"""The sequences of an engine, by their ids."""


def states_of(plan: StepPlan, sequences: Sequences, draws: Draws = NO_DRAWS) -> list[SamplingState]:
    """Return the state of each token that the plan samples, in the order of the logits."""
    states: list[SamplingState] = []
    for part in plan.parts:
        if part.completes:
            state = sequences[part.sequence.sequence_id][1]
            states += _states_ahead(state, part, draws) if part.proposed else [state]
    return states


def _states_ahead(state: SamplingState, part: StepPart, draws: Draws) -> list[SamplingState]:
    states = state.ahead(part.proposed)
    of_part = draws.get(part.sequence.sequence_id, ())[: len(part.proposed)]
    for index, draw in enumerate(of_part):
        # The first state is that of the sequence, which must not change.
        states[index] = copy.copy(states[index])
        states[index].draft = draw
    return states


class Speculation:
    """The speculation of one engine. Used by one thread."""

    def __init__(self, speculator: Speculator, scheduler: StepScheduler, draft: DraftProposer | None = None) -> None:
        """`draft`: the proposer of the speculator, where that is a draft model."""
        self._speculator = speculator
        self._scheduler = scheduler
        self._draft = draft
        self.unpriced_s = 0.0
        """Seconds of the last `propose` that are no part of the price of its tokens: prefill of the draft model, or
        nothing was proposed."""

    @property
    def draws(self) -> Draws:
        """The tokens that the draft model drew in this step, for sequences that accept them by rejection sampling."""
        return NO_DRAWS if self._draft is None else self._draft.draws

    def forget(self, sequence_id: int) -> None:
        """Drop a sequence that has ended."""
        self._speculator.forget(sequence_id)

    def propose(self, plan: StepPlan, sequences: Sequences) -> TieCheck | None:
        """Add proposed tokens to the plan. Return the check of the greedy rows; None without any."""
        started_s = time.perf_counter()
        if self._draft is not None:
            self._draft.states = sequences
        proposals = {
            sequence_id: allowed
            for sequence_id, proposed in self._speculator.propose(plan).items()
            if (allowed := self._allowed(proposed, *sequences[sequence_id]))
        }
        if not proposals:
            self.unpriced_s = time.perf_counter() - started_s
            return None
        self.unpriced_s = 0.0 if self._draft is None else self._draft.prefill_s
        self._scheduler.add_proposals(plan, proposals)
        rows: list[int] = []
        first = 0
        for part in plan.parts:
            if part.proposed and sequences[part.sequence.sequence_id][1].is_greedy:
                rows += range(first, first + part.num_sampled)
            first += part.num_sampled
        return TieCheck(rows) if rows else None

    def take(
        self,
        part: StepPart,
        sampled: Rows[Sampled | RoundhouseError],
        first: int,
        ties: TieCheck | None,
        take: Callable[[Sampled | RoundhouseError], bool],
    ) -> int:
        """Continue a sequence with the tokens of its part, up to the first one that differs from the proposed one.
        Return how many proposed tokens were accepted.

        `sampled`: its rows, of which `first` is the first one of the step. `take`: adds a token to the sequence, and
        returns whether that continues. Each token was sampled from its own distribution by its own random number, as
        without proposals. So the text is the same; proposed tokens only decide how many tokens a step yields. A near
        tie is computed again without proposals, by the kernels of a plain decode.
        """
        num_accepted = 0
        is_undecided = False
        for index, chosen in enumerate(sampled):
            is_undecided = ties is not None and first + index in ties.found
            if is_undecided:
                break
            self._scheduler.confirm(part.sequence)
            continues = take(chosen)
            is_accepted = index < len(part.proposed) and _is_token(chosen, part.proposed[index])
            num_accepted += is_accepted
            if not (continues and is_accepted):
                break
        self._speculator.learn(part, num_accepted, is_undecided)
        return num_accepted

    def _allowed(self, proposed: tuple[int, ...], sequence: Sequence, state: SamplingState) -> tuple[int, ...]:
        """Return the first of the proposed tokens, up to one that ends the text or breaks its constraint."""
        if sequence.sequence_id in self.draws:
            return proposed
        stops = sequence.request.stop_token_ids
        proposed = proposed[: next((i for i, token_id in enumerate(proposed) if token_id in stops), len(proposed))]
        return proposed[: state.matcher.num_allowed(proposed)] if state.matcher is not None and proposed else proposed

    def check_integrity(self) -> None:
        """Raise AssertionError where the draft model has lost blocks."""
        if self._draft is not None:
            self._draft.check_integrity()

    def learn_step(self, decodes: int, prompt_tokens: int, num_proposed: int, seconds: float) -> None:
        """Learn what the proposals of a step cost. Prompts beside them hide it."""
        if not prompt_tokens:
            self._speculator.learn_step(decodes, num_proposed, seconds)


def _is_token(chosen: Sampled | RoundhouseError, token_id: int) -> bool:
    return isinstance(chosen, Sampled) and chosen.token_id == token_id
