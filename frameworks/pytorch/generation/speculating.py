"""The part of a step that concerns proposed tokens: add them to a plan, and accept those that are right."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows

from frameworks.errors import RoundhouseError
from frameworks.generation.scheduler import StepScheduler
from frameworks.generation.sequence import Sequence, StepPart, StepPlan
from frameworks.generation.speculation.speculator import Speculator
from frameworks.pytorch.generation.near_ties import TieCheck
from frameworks.pytorch.generation.sampling import Sampled
from frameworks.pytorch.generation.sampling_state import SamplingState

Sequences = Mapping[int, tuple[Sequence, SamplingState]]
"""The sequences of an engine, by their ids."""


def states_of(plan: StepPlan, sequences: Sequences) -> list[SamplingState]:
    """Return the state of each token that the plan samples, in the order of the logits."""
    states: list[SamplingState] = []
    for part in plan.parts:
        if part.completes:
            state = sequences[part.sequence.sequence_id][1]
            states += state.ahead(part.proposed) if part.proposed else [state]
    return states


class Speculation:
    """The speculation of one engine. Used by one thread."""

    def __init__(self, speculator: Speculator, scheduler: StepScheduler) -> None:
        self._speculator = speculator
        self._scheduler = scheduler

    def forget(self, sequence_id: int) -> None:
        """Drop a sequence that has ended."""
        self._speculator.forget(sequence_id)

    def propose(self, plan: StepPlan, sequences: Sequences) -> TieCheck | None:
        """Add tokens to the plan that its texts may have. Return the check of the greedy rows; None without any."""
        proposals = {
            sequence_id: allowed
            for sequence_id, proposed in self._speculator.propose(plan).items()
            if (allowed := _allowed(proposed, *sequences[sequence_id]))
        }
        if not proposals:
            return None
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
        Return how many proposed tokens were right.

        `sampled`: its rows, of which `first` is the first one of the step. `take`: adds a token to the sequence, and
        returns whether that continues. Each token was drawn from its own distribution by its own random number, as
        without proposals. So the text is the same, and proposed tokens only decide how far a step gets. A near tie is
        computed again without proposals, by the kernels that would have decided it.
        """
        num_right = 0
        is_undecided = False
        for place, chosen in enumerate(sampled):
            is_undecided = ties is not None and first + place in ties.found
            if is_undecided:
                break
            self._scheduler.confirm(part.sequence)
            continues = take(chosen)
            is_right = place < len(part.proposed) and _is_token(chosen, part.proposed[place])
            num_right += is_right
            if not (continues and is_right):
                break
        self._speculator.learn(part, num_right, is_undecided)
        return num_right

    def learn_step(self, texts: int, prompt_tokens: int, num_proposed: int, seconds: float) -> None:
        """Learn what the proposals of a step cost. Prompts beside them hide it."""
        if not prompt_tokens:
            self._speculator.learn_step(texts, num_proposed, seconds)


def _is_token(chosen: Sampled | RoundhouseError, token_id: int) -> bool:
    return isinstance(chosen, Sampled) and chosen.token_id == token_id


def _allowed(proposed: tuple[int, ...], sequence: Sequence, state: SamplingState) -> tuple[int, ...]:
    """Return the first of the proposed tokens, up to one that ends the text or breaks its constraint."""
    stops = sequence.request.stop_token_ids
    proposed = proposed[: next((i for i, token_id in enumerate(proposed) if token_id in stops), len(proposed))]
    return proposed[: state.matcher.num_allowed(proposed)] if state.matcher is not None and proposed else proposed
