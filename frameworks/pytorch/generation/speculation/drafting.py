"""Propose the next tokens of sequences with a smaller model."""

import copy
import time
from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import numpy as np
import structlog
import torch

from frameworks.generation.sequences import SequenceRequest
from frameworks.pytorch.device_errors import map_device_error
from frameworks.pytorch.generation.decoders.runner import StepRunner
from frameworks.pytorch.generation.sampling.rejection import DraftDraw, draw_by
from frameworks.pytorch.generation.sampling.sampler import Sampled, Sampler
from frameworks.pytorch.generation.sampling.state import SamplingState
from frameworks.scheduling.speculation.draft_sequences import DraftSequences
from frameworks.scheduling.speculation.proposals import Wish
from frameworks.scheduling.steps.sequence import Sequence, StepPart, StepPlan
from frameworks.scheduling.steps.step_cost import PromptPrices, StepCost

# Prefill of the draft model in a step, beside the last tokens of its sequences: at least this number of tokens, and
# otherwise the tokens that take as long as this number of steps of the model.
_MIN_PREFILL_TOKENS = 64
_MAX_PREFILL_STEPS = 1.6
# The last accepted tokens, and the token after them, are no prefill.
_FOLLOWED_TOKENS = 4
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DraftModel:
    """A loaded draft model. `vocabulary_size`: number of its logits. `max_prefill_tokens`: in one step."""

    name: str
    runner: StepRunner
    sequences: DraftSequences
    max_context_tokens: int
    vocabulary_size: int
    max_prefill_tokens: int
    device: torch.device


@dataclass(slots=True)
class _Drafted:
    """Proposed tokens of one sequence so far. `state`: of the sampling of the next one. `most`: number of tokens.
    `draws`: of each token; None where the sequence's own random numbers draw them.
    """

    sequence: Sequence
    state: SamplingState
    most: int
    draws: list[DraftDraw] | None
    token_ids: list[int] = field(default_factory=list)

    def add(self, token_id: int | None, draw: DraftDraw | None = None) -> bool:
        """Add a token; None: there is none. Return whether another one may follow."""
        if token_id is None:
            return False
        ends = token_id in self.sequence.request.stop_token_ids
        if draw is not None and self.draws is not None:
            # To leave out a token because of its id would change the distribution of the text.
            self.draws.append(draw)
        elif ends:
            return False
        self.token_ids.append(token_id)
        if ends or len(self.token_ids) == self.most:
            return False
        self.state = self.state.ahead([token_id])[1]
        self.sequence.token_ids.append(token_id)
        return True


class DraftProposer:
    """A Proposer: the tokens that a smaller model samples with the parameters and the constraint of each sequence.

    A sequence with a seed of its caller, or with a constraint, samples proposed tokens by its own random numbers: its
    text is that of the seed without proposals. For other sampled sequences, `draws` has the distributions for
    accept_or_redraw, which accepts more tokens.

    A sequence is prefilled when its first tokens are to be proposed. The prefill of a long one takes several steps,
    which propose nothing for it.
    """

    def __init__(
        self,
        model: DraftModel,
        sampler: Sampler,
        vocabulary_size: int,
        step_cost: StepCost,
        random: np.random.Generator | None = None,
    ) -> None:
        """`sampler`: of rows of `vocabulary_size` logits, those of the served model. `step_cost`: of its steps.
        `random`: None for one that is new each time.
        """
        self._model = model
        self._sequences = model.sequences
        self._sampler = sampler
        self._vocabulary_size = vocabulary_size
        self._step_cost = step_cost
        self._random = np.random.default_rng() if random is None else random
        self._prices = PromptPrices()
        self._has_failed = False
        self.states: Mapping[int, tuple[Sequence, SamplingState]] = {}
        """The sampling states by sequence id, as of this step."""
        self.draws: dict[int, list[DraftDraw]] = {}
        """The draws of the last `propose` by sequence id, of the sequences that accept them by rejection sampling."""
        self.prefill_s = 0.0
        """Seconds of prefill in the last `propose`."""

    def propose(self, wishes: Rows[Wish]) -> list[tuple[int, ...]]:
        """As Proposer.propose. Without memory for a step of the draft model nothing is proposed from then on."""
        self.prefill_s, self.draws = 0.0, {}
        if self._has_failed:
            return [()] * len(wishes)
        try:
            with torch.inference_mode():
                return self._propose(wishes)
        except Exception as error:
            # It is unknown now which blocks were copied and computed.
            self._sequences.clear()
            ours = map_device_error(
                error, f"a step of the draft model with {len(wishes)} sequences", self._model.device
            )
            if ours is None:
                raise
            self._has_failed, self.draws = True, {}
            log.warning("the draft model proposes nothing from now on", draft_model=self._model.name, error=str(ours))
            return [()] * len(wishes)

    def forget(self, sequence_id: int) -> None:
        """As Proposer.forget."""
        self._sequences.forget(sequence_id)

    def check_integrity(self) -> None:
        """Raise AssertionError where blocks of its cache are lost or held twice."""
        self._sequences.check_integrity()

    def _propose(self, wishes: Rows[Wish]) -> list[tuple[int, ...]]:
        started_s = time.perf_counter()
        wished = {wish.sequence.sequence_id for wish in wishes}
        plan, drafted, num_prefilled = self._first_step(wishes, wished)
        active = [drafted[part.sequence.sequence_id] for part in plan.parts if part.completes]
        passes, first_s = 0, 0.0
        while plan.parts:
            logits = self._compute(plan)
            if active:
                active = self._draw(logits, active)
            passes += 1
            first_s = first_s or time.perf_counter() - started_s
            active = [each for each in active if self._sequences.extend(each.sequence, wished)]
            plan = StepPlan(parts=[StepPart(each.sequence, each.sequence.num_computed_tokens, 1) for each in active])
        if num_prefilled:
            others_s = time.perf_counter() - started_s - first_s
            self.prefill_s = max(0.0, first_s - (others_s / (passes - 1) if passes > 1 else 0.0))
            if self.prefill_s:
                self._prices.learn(1, num_prefilled, self.prefill_s)
        ids = [wish.sequence.sequence_id for wish in wishes]
        return [tuple(drafted[each].token_ids) if each in drafted else () for each in ids]

    def _first_step(self, wishes: Rows[Wish], wished: set[int]) -> tuple[StepPlan, dict[int, _Drafted], int]:
        """Plan the tokens that the draft model has not computed, as far as they fit. Return the plan, the sequences
        that it completes, and the number of prefilled tokens beside the last ones.
        """
        plan = StepPlan()
        drafted: dict[int, _Drafted] = {}
        budget = self._max_prefill_tokens(len(wishes))
        num_prefilled = 0
        for wish in wishes:
            sequence_id = wish.sequence.sequence_id
            most = min(wish.most, self._model.max_context_tokens - len(wish.sequence.token_ids))
            ours = self._sequences.of(wish.sequence, plan, wished) if most > 0 and self._knows(wish.sequence) else None
            if ours is None:
                continue
            behind = ours.num_uncomputed_tokens
            is_prefill = behind > most + _FOLLOWED_TOKENS
            if not is_prefill or num_prefilled < budget:
                count = plan.add_part(ours, budget - num_prefilled if is_prefill else behind)
                num_prefilled += count * is_prefill
                if count == behind:
                    state = copy.copy(self.states[sequence_id][1])
                    state.top_logprobs = None
                    draws = self.draws.setdefault(sequence_id, []) if _is_free(ours.request, state) else None
                    drafted[sequence_id] = _Drafted(ours, state, most, draws)
        plan.parts.sort(key=lambda part: part.num_tokens > 1)
        return plan, drafted, num_prefilled

    def _compute(self, plan: StepPlan) -> torch.Tensor:
        """Return the logits of the parts that complete their sequences, [parts, vocabulary of the served model]."""
        self._sequences.take_copies(plan)
        logits = self._model.runner.logits(plan)
        for part in plan.parts:
            self._sequences.advance(part.sequence, part.num_tokens)
        missing = self._vocabulary_size - logits.shape[-1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
        return logits[:, : self._vocabulary_size]

    def _draw(self, logits: torch.Tensor, drafted: list[_Drafted]) -> list[_Drafted]:
        """Add a token to each sequence. Return those to which another one may be added."""
        free = [row for row, each in enumerate(drafted) if each.draws is not None]
        others = [row for row, each in enumerate(drafted) if each.draws is None]
        draws: dict[int, DraftDraw | None] = {}
        tokens: dict[int, int | None] = {}
        if others:
            of_others = logits if not free else logits[others]
            sampled = self._sampler.sample(of_others, [drafted[row].state for row in others])
            for row, each in zip(others, sampled, strict=True):
                tokens[row] = each.token_id if isinstance(each, Sampled) else None
        if free:
            weights = self._sampler.distribution(logits[free], [drafted[row].state for row in free])
            uniforms = self._random.random((len(free), 3))
            drawn = draw_by(weights, torch.from_numpy(uniforms[:, :1]).to(weights.device)).tolist()
            are_usable = (weights.sum(dim=-1) > 0).tolist()  # not where logits are NaN
            for index, row in enumerate(free):
                tokens[row] = drawn[index] if are_usable[index] else None
                draws[row] = DraftDraw(drawn[index], weights[index], *uniforms[index, 1:].tolist())
        return [each for row, each in enumerate(drafted) if each.add(tokens[row], draws.get(row))]

    def _max_prefill_tokens(self, num_sequences: int) -> int:
        step_s = self._step_cost.seconds_of(num_sequences) or 0.0
        fitting = self._prices.fitting_tokens(_MAX_PREFILL_STEPS * step_s)
        return min(self._model.max_prefill_tokens, max(_MIN_PREFILL_TOKENS, fitting))

    def _knows(self, sequence: Sequence) -> bool:
        """Whether all tokens of a sequence are within the draft model's vocabulary, and none is of an image."""
        if sequence.request.media is not None:
            return False
        size = self._model.vocabulary_size
        return size >= self._vocabulary_size or max(sequence.token_ids) < size


def _is_free(request: SequenceRequest, state: SamplingState) -> bool:
    """Whether a sequence may be sampled by other random numbers than its own."""
    return not (state.is_greedy or request.is_seeded or state.matcher is not None)
