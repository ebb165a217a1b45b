"""Sample on a device with kernels: the token ids stay there for the next step, and the host reads them later."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import torch

from frameworks.core.errors import RoundhouseError
from frameworks.pytorch.device.queue import DeviceQueue, Mark, PinnedTable, current
from frameworks.pytorch.device_errors import RUN_ERRORS
from frameworks.pytorch.generation.decoders.sampled_ids import SampledIds
from frameworks.pytorch.generation.sampling.multinomial import (
    SamplingWorkspace,
    listed,
    log_probability_table,
    max_weight,
)
from frameworks.pytorch.generation.sampling.sampler import Sampled, sampled_rows
from frameworks.pytorch.generation.sampling.state import SamplingState

# Rows that share the buffers; those behind them are sampled after them.
_ROWS_TOGETHER = 32
_MIN_EDITS = 256
# Of five top tokens with their ids; more make the buffers larger.
_SCORED_COLUMNS = 11
_NO_PENALTIES = (1.0, 0.0, 0.0)


class UnreadTokens:
    """The tokens of a step, which the device may not have sampled yet. They are read before the step after the next."""

    def __init__(
        self, states: Sequence[SamplingState], found: torch.Tensor, scored: torch.Tensor | None, mark: Mark
    ) -> None:
        """`found`: int32 [2, rows], on the host behind the mark: token ids, and the bits of the largest logits.
        `scored`: there too, a `log_probability_table` of the rows that asked for it.
        """
        self._states = states
        self._found = found
        self._scored = scored
        self._mark = mark

    def read(self) -> list[Sampled | RoundhouseError]:
        """Wait for the device, and return the token of each row or its error."""
        self._mark.synchronize()
        results = sampled_rows(self._states, self._found[0], self._found[1].view(torch.float32))
        if self._scored is not None:
            rows, top = _asked(self._states)
            for row, of_row in zip(rows, listed(self._scored, top), strict=True):
                before = results[row]
                if isinstance(before, Sampled):
                    results[row] = Sampled(before.token_id, of_row.logprob, of_row.top)
        return results


def _asked(states: Sequence[SamplingState]) -> tuple[list[int], list[int]]:
    """Return the rows that want log probabilities, and how many top tokens of each."""
    top = {row: state.top_logprobs for row, state in enumerate(states) if state.top_logprobs is not None}
    return [*top], [*top.values()]


class DeviceSampler:
    """Samples rows without constraints, bad words and forced tokens. Used by one thread."""

    def __init__(self, device: torch.device, vocabulary_size: int, sampled: SampledIds, queue: DeviceQueue) -> None:
        """`sampled`: has an id for each row of a step."""
        # These need Triton.
        from frameworks.pytorch.device_kernels import sampling as kernels
        from frameworks.pytorch.device_kernels import unread_tokens

        most = len(sampled.ids)
        self._device = device
        self._kernels = kernels
        self._unread_tokens = unread_tokens
        self._queue = queue
        self._sampled = sampled
        self._max_weight = max_weight(vocabulary_size)
        self._buffers = kernels.SamplingBuffers.make(vocabulary_size, min(most, _ROWS_TOGETHER), device)
        self._parameters = PinnedTable((most, kernels.PARAMETERS), torch.float64, device, queue)
        self._edits = PinnedTable((0, unread_tokens.EDIT_COLUMNS), torch.int32, device, queue)
        self._maxima = torch.zeros(most, device=device)
        self._before = torch.zeros_like(sampled.ids)
        # Two steps are on the device at most: one of them is read.
        self._slots = [torch.zeros(2, most, dtype=torch.int32, pin_memory=device.type == "cuda") for _ in range(2)]
        self._workspace = SamplingWorkspace(device, vocabulary_size)
        self._scored_rows = PinnedTable((most,), torch.int64, device, queue)
        self._scored = torch.zeros(most * _SCORED_COLUMNS, dtype=torch.float64, device=device)
        self._scored_slots = [self._scored_slot(len(self._scored)) for _ in range(2)]

    @property
    def size_bytes(self) -> int:
        """Return its memory on the device."""
        return self._buffers.size_bytes

    def can_sample(self, states: Sequence[SamplingState]) -> bool:
        """Return whether it samples the rows of a step."""
        return all([state.continues_unread for state in states])  # noqa: C419 - a list is faster

    def catch_up(self) -> None:
        """Let operators of torch follow the step's launches: the host samples it."""
        self._queue.catch_up()

    def finish(self) -> None:
        """Wait for all steps before their memory is released, also for one that is never read."""
        with current(self._device), suppress(*RUN_ERRORS):  # a device that failed has nothing to wait for
            self._queue.mark().synchronize()

    def launch(self, logits: torch.Tensor, states: Sequence[SamplingState], unread_rows: Sequence[int]) -> UnreadTokens:
        """Sample a token of each row, without a wait for the device.

        `logits`: float32, bfloat16 or float16 [rows, vocabulary]. The states do not change. `unread_rows`: of the last
        step, with the last token of each row; -1: its state knows it. A row's result is the same whatever the other
        rows are.
        """
        rows = len(states)
        slot = self._slots.pop(0)
        self._slots.append(slot)
        found = slot[:, :rows]
        with current(self._device):
            kinds = self._fill_parameters(states, unread_rows)
            self._queue.run(partial(self._sample, logits, kinds, self._fill_edits(states)))
            self._queue.copy(self._sampled.ids[:rows], found[0])
            self._queue.copy(self._maxima[:rows], found[1].view(torch.float32))
            return UnreadTokens(states, found, self._score(logits, *_asked(states)), self._queue.mark())

    def _score(self, logits: torch.Tensor, rows: list[int], top: list[int]) -> torch.Tensor | None:
        """Compute the log probabilities of some rows; return where the host finds them behind the step's mark."""
        slot = self._scored_slots.pop(0)
        self._scored_slots.append(slot)
        if not rows:
            return None
        self._scored_rows.wait()
        self._scored_rows.host[: len(rows)] = torch.tensor(rows)
        self._scored_rows.send(len(rows))
        shape = (len(rows), 1 + 2 * min(max(top), logits.shape[1]))
        size = shape[0] * shape[1]
        if size > len(slot):
            slot = self._scored_slots[-1] = self._scored_slot(size)
        if size > len(self._scored):
            self._scored = torch.zeros(size, dtype=torch.float64, device=self._device)
        index, scored, found = self._scored_rows.device[: len(rows)], self._scored[:size], slot[:size]

        def compute() -> None:
            chosen = self._sampled.ids.index_select(0, index).long()
            own = logits.index_select(0, index).float()
            scored.view(shape).copy_(log_probability_table(own, chosen, max(top), self._workspace))

        self._queue.run(compute)
        self._queue.copy(scored, found)
        return found.view(shape)

    def _scored_slot(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.float64, pin_memory=self._device.type == "cuda")

    def _fill_parameters(self, states: Sequence[SamplingState], unread_rows: Sequence[int]) -> list[int]:
        """Copy the parameters of each row; return their kinds."""
        self._parameters.wait()
        table = self._parameters.host.numpy()
        kinds = []
        end = 0
        for row, (state, unread_row) in enumerate(zip(states, unread_rows, strict=True)):
            kinds.append(self._kind_of(state))
            changes = state.logit_processor
            first, end = end, end + (0 if changes is None else len(changes.current().ids))
            source, penalties = (-1, _NO_PENALTIES) if changes is None else (unread_row, changes.penalties)
            of_row = (kinds[-1], state.temperature, state.top_k, state.top_p, state.min_p, state.uniform)
            table[row] = *of_row, first, end, source, *penalties
        self._parameters.send(len(states))
        return kinds

    def _fill_edits(self, states: Sequence[SamplingState]) -> torch.Tensor | None:
        """Copy the edits of all rows; return them on the device, or None where no row has a change."""
        changes = [state.logit_processor.current() for state in states if state.logit_processor is not None]
        if not changes:
            return None
        size = sum(len(each.ids) for each in changes)
        self._edits.wait()
        if size > len(self._edits.host):
            rows = max(_MIN_EDITS, 2 * size)
            self._edits = PinnedTable((rows, self._unread_tokens.EDIT_COLUMNS), torch.int32, self._device, self._queue)
        table = self._edits.host.numpy()
        start = 0
        for each in changes:
            own = table[start : start + len(each.ids)]
            own[:, 0], own[:, 3] = each.ids, each.are_counted
            own[:, 1], own[:, 2] = each.divisors.view(np.int32), each.shifts.view(np.int32)
            start += len(each.ids)
        self._edits.send(size)
        return self._edits.device

    def _kind_of(self, state: SamplingState) -> int:
        if state.is_greedy:
            return self._kernels.GREEDY
        return self._kernels.TRUNCATED if state.is_truncated else self._kernels.DRAWN

    def _sample(self, logits: torch.Tensor, kinds: Sequence[int], edits: torch.Tensor | None) -> None:
        kernels, most = self._kernels, self._buffers.rows
        if edits is not None:
            self._before.copy_(self._sampled.ids)  # the rows are sampled some after the others
        for start in range(0, len(kinds), most):
            rows = slice(start, min(start + most, len(kinds)))
            values, parameters = logits[rows], self._parameters.device[rows]
            if edits is not None:
                values = self._buffers.changed[: len(values)].copy_(values)
                self._unread_tokens.edit_rows(values, parameters, edits, self._before)
            kernels.sample_rows(
                values, parameters, set(kinds[rows]), self._max_weight, self._buffers,
                self._sampled.ids[rows], self._maxima[rows],
            )  # fmt: skip
