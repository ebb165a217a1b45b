"""Sample the next token of every row of a batch, each with the sampling parameters of its sequence."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from frameworks.core.errors import InvalidInput, ModelFailed, RoundhouseError
from frameworks.pytorch.generation.sampling.masking import ConstraintMasks
from frameworks.pytorch.generation.sampling.multinomial import (
    SamplingWorkspace,
    Truncation,
    compute_weights,
    draw_tokens,
    draw_truncated,
    keep_candidates,
    log_probabilities,
    num_candidates,
)
from frameworks.pytorch.generation.sampling.rejection import accept_or_redraw
from frameworks.pytorch.generation.sampling.state import SamplingState
from frameworks.pytorch.generation.sampling.top_k import TieCheck, argmax_rows
from frameworks.pytorch.openmp import single_threaded


class Sampled(NamedTuple):
    """A token with the log probabilities of GeneratedToken. `is_forced`: another token would have been sampled."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    is_forced: bool = False


class Sampler:
    """The sampler of one model, used by one thread. It holds buffers for the rows of its largest batch.

    Order: grammar mask; repetition, frequency and presence penalty, logit_bias, bad words; allowed tokens; temperature;
    top_k, top_p and min_p; the draw; forced tokens.
    """

    def __init__(self, device: torch.device, vocabulary_size: int) -> None:
        """`device`: of the logits. MPS has no float64 and shares its memory with the CPU, so its rows are drawn on the
        CPU.
        """
        self._device = torch.device("cpu") if device.type == "mps" else device
        self._vocabulary_size = vocabulary_size
        self._masks = ConstraintMasks(self._device, vocabulary_size)
        self._changed = torch.empty(0, vocabulary_size, device=self._device)
        self._workspace = SamplingWorkspace(self._device, vocabulary_size)

    def sample(
        self, logits: torch.Tensor, states: Sequence[SamplingState], ties: TieCheck | None = None
    ) -> list[Sampled | RoundhouseError]:
        """Return a token for each row, or the error of that row. The states do not change. `ties` is filled in.

        `logits`: float32, bfloat16 or float16 [rows, vocabulary], on the device; unchanged. A row's result is the same
        whatever the other rows are. If logits are NaN, or no token is allowed, that row alone fails.
        """
        with torch.inference_mode(), single_threaded():
            if all([state.is_plain for state in states]):  # noqa: C419 - a list is faster, and most steps get here
                values = logits.to(self._device, torch.float32)
                token_ids, maxima = self._choose(values, logits.dtype, states, ties)
                return sampled_rows(states, token_ids, maxima)
            # Before any call waits for the device, which may still be computing the logits.
            constrained = [row for row, state in enumerate(states) if state.matcher is not None]
            failures = self._masks.fill(states, constrained) if constrained else {}
            logits = logits.to(self._device)
            values = self._change(logits, states, constrained)
            token_ids, maxima = self._choose(values, logits.dtype, states, ties)
            redrawn = [row for row, state in enumerate(states) if state.draft is not None]
            if redrawn:
                token_ids = self._redraw(values, maxima, token_ids, states, redrawn)
            results = sampled_rows(states, token_ids, maxima)
            token_ids = _force(results, token_ids, states)
            scores_allowed = all(state.scores_allowed for state in states)
            self._add_logprobs(results, values if scores_allowed else logits, token_ids, states)
        for row, failure in failures.items():
            results[row] = failure
        return results

    def _choose(
        self, values: torch.Tensor, logits_dtype: torch.dtype, states: Sequence[SamplingState], ties: TieCheck | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the token of each row, greedy or drawn, int64 [rows], and the largest logit, float32 [rows].

        Rows with a draft are greedy. `values`: float32 [rows, vocabulary], the changed logits of `logits_dtype`.
        """
        token_ids, maxima = argmax_rows(values)
        if ties is not None:
            ties.find(values, maxima, logits_dtype)
        drawn = [row for row, state in enumerate(states) if not state.is_greedy and state.draft is None]
        if drawn and len(drawn) == len(states):
            token_ids = self._draw(values, maxima, states)
        elif drawn:
            index = torch.tensor(drawn, device=self._device)
            of_rows = [states[row] for row in drawn]
            drawn_ids = self._draw(values.index_select(0, index), maxima.index_select(0, index), of_rows)
            token_ids = token_ids.index_copy_(0, index, drawn_ids)
        return token_ids, maxima

    def _change(self, logits: torch.Tensor, states: Sequence[SamplingState], constrained: list[int]) -> torch.Tensor:
        """Return the changed logits, float32 [rows, vocabulary]; `logits` itself if nothing changes."""
        changes = [
            (row, state.logit_processor.current())
            for row, state in enumerate(states)
            if state.logit_processor is not None
        ]
        changes = [(row, change) for row, change in changes if len(change.ids)]
        masked = [(row, state.allowed) for row, state in enumerate(states) if state.allowed is not None]
        if logits.dtype == torch.float32 and not changes and not constrained and not masked:
            return logits
        if len(states) > len(self._changed):
            self._changed = self._changed.new_empty(len(states), self._vocabulary_size)
        values = self._changed[: len(states)].copy_(logits)
        if constrained:
            self._masks.add_to(values, constrained)
        if changes:
            flat = np.concatenate([change.ids + row * self._vocabulary_size for row, change in changes])
            index = torch.from_numpy(flat).to(self._device)
            divisors = torch.from_numpy(np.concatenate([change.divisors for _, change in changes])).to(self._device)
            shifts = torch.from_numpy(np.concatenate([change.shifts for _, change in changes])).to(self._device)
            before = values.view(-1).index_select(0, index)
            values.view(-1).index_copy_(
                0, index, torch.where(before < 0, before * divisors, before / divisors).add_(shifts)
            )
        for row, allowed in masked:
            allowed.mask(values[row])
        return values

    def change_log_probs(self, values: torch.Tensor, states: Sequence[SamplingState]) -> torch.Tensor:
        """Return log probabilities with the penalties, the bans and the forced tokens of each row, for a beam search.

        `values`: float32 [rows, vocabulary]; they do not change.
        """
        changed = self._change(values, states, [])
        forced = [(row, ids) for row, state in enumerate(states) if (ids := state.forced_ids)]
        if forced:
            changed = changed.clone()
            for row, ids in forced:
                changed[row] = -math.inf
                changed[row, list(ids)] = 0
        return changed

    def distribution(self, logits: torch.Tensor, states: Sequence[SamplingState]) -> torch.Tensor:
        """Return weights in proportion to the sampling probabilities of drawn rows, float32 [rows, vocabulary].

        No state has a constraint; `logits` as for `sample`.
        """
        with torch.inference_mode(), single_threaded():
            values = self._change(logits.to(self._device), states, [])
            return self._kept_weights(values, argmax_rows(values)[1], states).clone()

    def _draw(self, values: torch.Tensor, maxima: torch.Tensor, states: Sequence[SamplingState]) -> torch.Tensor:
        """Draw a token for each row, int64 [rows]."""
        weights, table, cut = self._weigh(values, maxima, states)
        uniforms = table[:, 4:]
        sums = self._workspace.sums_of_blocks(weights)
        if not cut:
            return draw_tokens(weights, sums, uniforms)
        of_tokens, totals = weights[:, : self._vocabulary_size], sums.sum(dim=-1, keepdim=True)
        truncation = self._truncation(table, states, cut)
        if len(cut) == len(states):
            return draw_truncated(of_tokens, totals, uniforms, truncation)
        index = torch.tensor(cut, device=self._device)
        drawn = draw_truncated(of_tokens[index], totals[index], uniforms[index], truncation.of(index))
        return draw_tokens(weights, sums, uniforms).index_copy_(0, index, drawn)

    def _redraw(
        self,
        values: torch.Tensor,
        maxima: torch.Tensor,
        token_ids: torch.Tensor,
        states: Sequence[SamplingState],
        rows: list[int],
    ) -> torch.Tensor:
        """Return `token_ids`, int64 [rows], with those of `rows` accepted from a draft model, or drawn again."""
        index = torch.tensor(rows, device=self._device)
        of_rows = [states[row] for row in rows]
        weights = self._kept_weights(values.index_select(0, index), maxima.index_select(0, index), of_rows)
        draws = [state.draft for state in of_rows if state.draft is not None]
        return token_ids.index_copy_(0, index, accept_or_redraw(weights, draws))

    def _kept_weights(
        self, values: torch.Tensor, maxima: torch.Tensor, states: Sequence[SamplingState]
    ) -> torch.Tensor:
        """Return the weights of all tokens, 0 for removed ones: float32 [rows, vocabulary]."""
        weights, table, cut = self._weigh(values, maxima, states)
        of_tokens = weights[:, : self._vocabulary_size]
        if cut:
            index = torch.tensor(cut, device=self._device)
            totals = self._workspace.sums_of_blocks(weights).sum(dim=-1, keepdim=True)
            truncation = self._truncation(table, states, cut).of(index)
            of_tokens.index_copy_(0, index, keep_candidates(of_tokens[index], totals[index], truncation))
        return of_tokens

    def _weigh(
        self, values: torch.Tensor, maxima: torch.Tensor, states: Sequence[SamplingState]
    ) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Return the weights, a buffer of the workspace, the parameters of each row, float64 [rows, 5], and the rows
        with top-k, top-p or min-p.
        """
        asked, cut = [], []
        are_scaled = False
        for row, state in enumerate(states):
            asked.append((state.temperature, state.top_k, state.top_p, state.min_p, state.uniform))
            are_scaled = are_scaled or state.temperature != 1
            if state.is_truncated:
                cut.append(row)
        table = torch.tensor(asked, dtype=torch.float64).to(self._device)
        temperatures = table[:, :1].float() if are_scaled else None
        return compute_weights(values, maxima[:, None], temperatures, self._workspace), table, cut

    def _truncation(self, table: torch.Tensor, states: Sequence[SamplingState], cut: list[int]) -> Truncation:
        """Return the limits of all rows. `cut`: the rows with top-k, top-p or min-p."""
        candidates = num_candidates([states[row].top_k for row in cut], self._vocabulary_size)
        return Truncation(table[:, 1:2].long(), table[:, 2:3], table[:, 3:4], *candidates)

    def _add_logprobs(
        self,
        results: list[Sampled | RoundhouseError],
        logits: torch.Tensor,
        token_ids: torch.Tensor,
        states: Sequence[SamplingState],
    ) -> None:
        """Add log probabilities to the rows that requested them."""
        asked = [
            (row, state.top_logprobs)
            for row, state in enumerate(states)
            if state.top_logprobs is not None and isinstance(results[row], Sampled)
        ]
        if not asked:
            return
        index = torch.tensor([row for row, _ in asked], device=self._device)
        chosen = token_ids.index_select(0, index)
        found = log_probabilities(
            logits.index_select(0, index).float(), chosen, [top for _, top in asked], self._workspace
        )
        for (row, _), token_id, of_row in zip(asked, chosen.tolist(), found, strict=True):
            before = results[row]
            assert isinstance(before, Sampled)
            results[row] = Sampled(token_id, of_row.logprob, of_row.top, before.is_forced)


def _force(
    results: list[Sampled | RoundhouseError], token_ids: torch.Tensor, states: Sequence[SamplingState]
) -> torch.Tensor:
    """Replace sampled tokens by forced ones, also in `results`. Return `token_ids`, int64 [rows], with them."""
    forced: dict[int, int] = {}
    for row, state in enumerate(states):
        if not state.forces_tokens:
            continue
        ids, result = state.forced_ids, results[row]
        if ids and isinstance(result, Sampled):
            # transformers gives all of them one logit: the first is the greedy one, and each is drawn as often.
            token_id = min(ids) if state.is_greedy else ids[int(state.uniform * len(ids))]
            results[row], forced[row] = Sampled(token_id, is_forced=result.token_id not in ids), token_id
    if not forced:
        return token_ids
    rows, values = (torch.tensor(list(each), device=token_ids.device) for each in (forced, forced.values()))
    return token_ids.index_copy(0, rows, values)


def sampled_rows(
    states: Sequence[SamplingState], token_ids: torch.Tensor, maxima: torch.Tensor
) -> list[Sampled | RoundhouseError]:
    """Return the token of each row, or an error where its largest logit is not finite: both [rows]."""
    return [
        Sampled(token_id) if math.isfinite(maximum) else _missing_token_error(state, maximum)
        for state, token_id, maximum in zip(states, token_ids.tolist(), maxima.tolist(), strict=True)
    ]


def _missing_token_error(state: SamplingState, maximum: float) -> RoundhouseError:
    if maximum == -math.inf:
        if state.matcher is not None:
            return InvalidInput("constraint", "no token of the model's vocabulary can continue the text")
        if state.logit_processor is not None:
            field = "bad_words" if state.logit_processor.has_bad_words else "logit_bias"
            return InvalidInput(field, "expected at least one token that may be chosen, got none")
    return ModelFailed("the model returned logits that are not finite")
