"""Choose the sequences of a step for which tokens are proposed, and learn from the accepted ones. Pure."""

from frameworks.scheduling.speculation.gain import FIRST_RATE, TRIAL_FRACTION, ProposalCost, RequestGain
from frameworks.scheduling.speculation.proposals import Proposer, Wish
from frameworks.scheduling.steps.sequence import Sequence, StepPart, StepPlan
from frameworks.scheduling.steps.step_cost import StepCost

# Weight of the newest proposal in the acceptance rate from which each request begins.
_NEWEST_WEIGHT = 0.03
# In decodes. A trial that costs more has no gain.
_MOST_SAVED = 8.0


class Speculator:
    """The speculation of one model. Used by one thread."""

    def __init__(self, proposer: Proposer, max_tokens: int, step_cost: StepCost) -> None:
        """`max_tokens`: proposed for a text in a step. `step_cost`: of the steps without proposals."""
        self._proposer = proposer
        self._max_tokens = max_tokens
        self._step_cost = step_cost
        self._cost = ProposalCost()
        self._gains: dict[int, RequestGain] = {}
        self._undecided: set[int] = set()
        self._num_proposing = 1
        """Texts with proposed tokens in the last step that had any."""
        self._acceptance_rate = FIRST_RATE
        self._saved = 0.0
        """Decodes that trials may still cost, up to _MOST_SAVED."""
        self._has_prompt = False
        self._follows_prompt = False
        """Whether the step before had a prompt, which replaced the weights in the CPU's caches."""

    def propose(self, plan: StepPlan) -> dict[int, tuple[int, ...]]:
        """Return the proposed tokens by sequence id. Empty until a step without proposals was measured."""
        decodes = [part for part in plan.parts if _is_decode(part)]
        self._follows_prompt, self._has_prompt = self._has_prompt, len(decodes) < len(plan.parts)
        if not decodes or self._step_cost.seconds_of(len(decodes)) is None:
            return {}
        wishes = [Wish(part.sequence, self._num_wanted(part.sequence, len(decodes))) for part in decodes]
        wishes = [wish for wish in wishes if wish.most > 0]
        self._saved = min(_MOST_SAVED, self._saved + TRIAL_FRACTION * (len(decodes) - len(wishes)))
        if not wishes:
            return {}
        found = self._proposer.propose(wishes)
        proposals = {wish.sequence.sequence_id: ids for wish, ids in zip(wishes, found, strict=True) if ids}
        self._num_proposing = len(proposals) or self._num_proposing
        return proposals

    def learn(self, part: StepPart, num_accepted: int, is_undecided: bool) -> None:
        """Record the accepted proposals of a part. `is_undecided`: the next token has to be computed alone."""
        sequence_id = part.sequence.sequence_id
        examined = num_accepted + (num_accepted < len(part.proposed))
        self._acceptance_rate += _NEWEST_WEIGHT * (num_accepted / examined - self._acceptance_rate)
        gain = self._gains.get(sequence_id)  # None: the sequence ended in this step
        if gain is not None:
            gain.learn(len(part.proposed), num_accepted)
        if is_undecided:
            self._undecided.add(sequence_id)

    def learn_step(self, decodes: int, proposed: int, seconds: float) -> None:
        """Record the time of a step of so many decodes, without prompts, with this number of proposals.

        A step after a prompt is not recorded: it is slower, and all trials of short texts are such steps.
        """
        plain_s = self._step_cost.seconds_of(decodes)
        if plain_s is not None and not self._follows_prompt:
            self._cost.learn(decodes, proposed, seconds, plain_s)

    def forget(self, sequence_id: int) -> None:
        """Drop a sequence that has ended."""
        self._gains.pop(sequence_id, None)
        self._undecided.discard(sequence_id)
        self._proposer.forget(sequence_id)

    def _num_wanted(self, sequence: Sequence, decodes: int) -> int:
        sequence_id = sequence.sequence_id
        if sequence_id in self._undecided:
            self._undecided.remove(sequence_id)
            return 0
        # The step itself gives one token more.
        most = min(self._max_tokens, sequence.request.max_tokens - sequence.num_generated_tokens - 1)
        if most <= 0:
            return 0
        gain = self._gains.get(sequence_id)
        if gain is None:
            max_tokens = sequence.request.max_tokens
            gain = self._gains[sequence_id] = RequestGain(self._acceptance_rate, max_tokens, self._saved)
        wanted = gain.num_wanted(most, decodes, self._cost, self._num_proposing)
        if gain.is_trial:
            self._saved = max(0.0, self._saved - self._cost.of_trial(decodes))
        return wanted


def _is_decode(part: StepPart) -> bool:
    return part.num_tokens == 1 and part.completes and not part.is_scored
