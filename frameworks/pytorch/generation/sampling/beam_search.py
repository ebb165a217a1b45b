"""Beam search of one sequence, with the results of transformers' `generate`.

transformers searches a batch in tensors of one size (`GenerationMixin._beam_search`); this is the same arithmetic, in
float32, for one text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from frameworks.core.errors import ModelFailed
from frameworks.generation.sequences import GeneratedToken, SequenceRequest
from frameworks.generation.types import FinishReason
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.sampling.state import SamplingState
from frameworks.scheduling.steps.blocks import Copy
from frameworks.scheduling.steps.sequence import StepPart

_EXCLUDED = -1.0e9
"""Added to the scores of texts that must not be chosen, as in transformers."""

Change = Callable[[torch.Tensor, Sequence[SamplingState]], torch.Tensor]
"""Log probabilities of the next tokens, and the states of their beams → the changed ones."""


class _Finished(NamedTuple):
    score: float
    token_ids: tuple[int, ...]
    is_complete: bool


class BeamSearcher:
    """The search of one sequence. Used by one thread. It begins again when the sequence was preempted."""

    def __init__(self, request: SequenceRequest, state: SamplingState) -> None:
        """`state`: of the sequence before its first token; it does not change."""
        options = request.sampling.beams
        assert options is not None
        self._options = options
        self._request = request
        count = options.num_beams
        self._states = [state.copied() for _ in range(count)]
        self._token_ids: list[tuple[int, ...]] = [()] * count
        self._scores = torch.tensor([0.0] + [_EXCLUDED] * (count - 1))
        self._finished = [_Finished(_EXCLUDED, (), False)] * count
        self._may_improve = True
        self._kept = max(2, 1 + len(request.stop_token_ids)) * count

    @property
    def num_generated(self) -> int:
        return len(self._token_ids[0])

    def tokens(self) -> list[GeneratedToken]:
        """Return the tokens of the best complete text, with the one that ended it."""
        request, token_ids = self._request, self._finished[0].token_ids
        found = [GeneratedToken(request.sequence_id, each) for each in token_ids]
        is_stop = token_ids[-1] in request.stop_token_ids
        reason: FinishReason = "stop" if is_stop else "length"
        found[-1] = found[-1]._replace(finish_reason=reason, is_text=not is_stop)
        return found

    @property
    def last_ids(self) -> list[int]:
        """The last token of each beam."""
        return [token_ids[-1] for token_ids in self._token_ids]

    def take(self, logits: torch.Tensor, change: Change) -> list[int] | None:
        """Continue the beams. Return the beam that each of them continues; None where the search has ended.

        `logits`: [beams, vocabulary], or [1, vocabulary] after the prompt. Raises ModelFailed.
        """
        count = self._options.num_beams
        log_probs = change(torch.log_softmax(logits.float().cpu(), -1).expand(count, -1), self._states)
        vocabulary_size = log_probs.shape[1]
        scores = (log_probs + self._scores[:, None]).reshape(-1)
        top_scores, top = torch.topk(scores, min(self._kept, len(scores)))
        if not torch.isfinite(top_scores[0]):
            raise ModelFailed("the model returned logits that are not finite, or no token is allowed")
        parents, token_ids = (top // vocabulary_size).tolist(), (top % vocabulary_size).tolist()
        is_last = self.num_generated + 1 >= self._request.max_tokens
        ends = torch.tensor([is_last or each in self._request.stop_token_ids for each in token_ids])
        texts = [(*self._token_ids[parent], token) for parent, token in zip(parents, token_ids, strict=True)]
        running_scores = top_scores + ends.float() * _EXCLUDED
        kept = torch.topk(running_scores, count)[1]
        self._finish(texts, top_scores, ends)
        chosen = kept.tolist()
        self._scores = running_scores[kept]
        states = [self._states[parents[each]].copied() for each in chosen]
        for state, each in zip(states, chosen, strict=True):
            state.accept(token_ids[each])
        self._states, self._token_ids = states, [texts[each] for each in chosen]
        self._check_improvement()
        is_full = all(each.is_complete for each in self._finished) and self._options.early_stopping is True
        if not self._may_improve or is_full or bool(ends.all()):
            return None
        return [parents[each] for each in chosen]

    def _finish(self, texts: list[tuple[int, ...]], scores: torch.Tensor, ends: torch.Tensor) -> None:
        """Keep the best of the texts that end here and of those that ended before."""
        count = self._options.num_beams
        may_end = ends.clone()
        may_end[count:] = False  # the others only continue the search
        values = scores / (len(texts[0]) ** self._options.length_penalty)
        if all(each.is_complete for each in self._finished) and self._options.early_stopping is True:
            values = values + _EXCLUDED
        if not self._may_improve:
            values = values + _EXCLUDED
        values = values + (~may_end).float() * _EXCLUDED
        merged = torch.cat((torch.tensor([each.score for each in self._finished]), values))
        found = [
            *self._finished,
            *(_Finished(0.0, text, bool(end)) for text, end in zip(texts, may_end.tolist(), strict=True)),
        ]
        best, order = torch.topk(merged, count)
        self._finished = [
            found[each]._replace(score=score) for score, each in zip(best.tolist(), order.tolist(), strict=True)
        ]

    def _check_improvement(self) -> None:
        """Note whether the best running beam may yet beat the worst complete one."""
        options = self._options
        length = self.num_generated
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = self._request.max_tokens
        best = self._scores[0] / (length**options.length_penalty)
        worst = min(each.score for each in self._finished)
        thresholds = torch.tensor([worst if each.is_complete else _EXCLUDED for each in self._finished])
        self._may_improve = self._may_improve and bool((best > thresholds).any())


@dataclass(slots=True)
class Beams:
    """The beams of a sequence between two steps: its `cache`. `blocks`: those of each beam after the source, in order.
    `copies`: to make before the next step.
    """

    search: BeamSearcher
    blocks: list[list[int]]
    copies: list[Copy]

    @property
    def last_ids(self) -> list[int]:
        """The last token of each beam."""
        return self.search.last_ids

    def add_column(self, blocks: Sequence[int]) -> None:
        """Give each beam one more block."""
        for own, block in zip(self.blocks, blocks, strict=True):
            own.append(block)


def take_logits(part: StepPart, state: SamplingState, logits: torch.Tensor, change: Change) -> BeamSearcher | None:
    """Continue the beams of a sequence after a step. Return the search where it has ended.

    `state`: of the sequence before its first token. `logits`: of its beams, [beams, vocabulary]; [1, vocabulary] after
    its prompt. Raises ModelFailed.
    """
    sequence = part.sequence
    width, shared = sequence.width, sequence.num_shared_tokens
    beams: Beams | None = sequence.cache
    search = BeamSearcher(sequence.request, state) if beams is None else beams.search
    first = shared // BLOCK_TOKENS
    blocks = [sequence.blocks[first::width]] * width if beams is None else beams.blocks
    parents = search.take(logits, change)
    if parents is None:
        return search
    is_full = (part.start + part.num_tokens - shared) % BLOCK_TOKENS == 0
    sequence.cache = Beams(search, *continue_blocks(blocks, parents, sequence.blocks[-width:], is_full))
    return None


def continue_blocks(
    blocks: list[list[int]], parents: Sequence[int], column: Sequence[int], is_full: bool
) -> tuple[list[list[int]], list[Copy]]:
    """Return the blocks of the beams that continue their parents, and the copies that keep their texts apart.

    `blocks`: of each beam before. `column`: all blocks that the last column has. `is_full`: no token is written to it
    any more, so that beams may share its blocks.
    """
    found = [list(blocks[parent]) for parent in parents]
    copies: list[Copy] = []
    if not is_full:
        taken: set[int] = set()
        free = [block for block in column if block not in {own[-1] for own in found}]
        for own in found:
            if own[-1] in taken:
                copies.append(Copy(own[-1], free[-1]))
                own[-1] = free.pop()
            taken.add(own[-1])
    return found, copies
