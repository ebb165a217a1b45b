"""Buffer the generated tokens of one request between the workers and the request's reader."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from frameworks.core.errors import Overloaded
from frameworks.generation.prompt_scores import PromptScores
from frameworks.generation.sequences import Alignment, GeneratedToken

MAX_UNREAD_TOKENS = 1024
"""Per sequence; a reader that falls further behind loses its request."""

_RETRY_AFTER_S = 1.0


class ArrivedToken(NamedTuple):
    """A token and its time of arrival (time.perf_counter)."""

    arrived_s: float
    token: GeneratedToken


@dataclass(slots=True)
class TenantTokens:
    """The tokens of one tenant's sequences: of their prompts, and generated ones."""

    prompt: int = 0
    generated: int = 0


class TokenFeed:
    """The tokens of all sequences of one request, in order of arrival: written by workers, read by one reader.

    The feed ends when each sequence has ended, or with the first error, which aborts the other sequences. The number of
    unread tokens is bounded, and a step wakes the reader at most once. Owned by the event loop.
    """

    def __init__(self, begin: Callable[[], None], end: Callable[[], None] = lambda: None) -> None:
        """`begin` is called for each sequence when it begins to be computed; `end` when the last one has ended."""
        self._begin = begin
        self._end = end
        self._aborts: dict[int, Callable[[int], None]] = {}
        self._unread: list[ArrivedToken] = []
        self._max_unread = 0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.begun_s: float | None = None
        """time.perf_counter when the first sequence began to be computed; None before."""
        self.tenant_tokens: TenantTokens | None = None
        """Where the tokens of the request are counted for its tenant; None: only for the model."""
        self.cached_tokens: dict[int, int] = {}
        """Sequence id → number of cached prompt tokens, of sequences that have begun, in that order."""
        self.proposed_tokens = 0
        """Tokens that speculation proposed for the sequences."""
        self.accepted_tokens = 0
        """Those of them that were right."""
        self.prompt_scores: dict[int, PromptScores] = {}
        """By sequence id, of prompts that were computed. They arrive before the first token."""
        self.alignments: dict[int, Alignment] = {}
        """By sequence id, as of StepResult."""

    @property
    def is_over(self) -> bool:
        """Whether every sequence has ended; unread tokens may remain."""
        return not self._aborts

    @property
    def num_unread(self) -> int:
        """Number of tokens since the last read."""
        return len(self._unread)

    async def read(self) -> list[ArrivedToken]:
        """Return the tokens since the last read; wait for at least one. Empty at the end. One reader at a time.

        Raises the error that ended the feed, after the tokens before it were read.
        """
        assert self._waiter is None, "one reader at a time"
        while not self._unread:
            if self._error is not None:
                raise self._error
            if not self._aborts:
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        unread, self._unread = self._unread, []
        return unread

    def abort(self, sequence_id: int) -> None:
        """End one sequence. Does nothing where it has ended."""
        abort = self._aborts.pop(sequence_id, None)
        if abort is not None:
            abort(sequence_id)
            self._wake()
            if not self._aborts:
                self._end()

    def close(self) -> None:
        """End all sequences and drop unread tokens. May be called again."""
        self._unread.clear()
        self.prompt_scores.clear()
        for sequence_id in list(self._aborts):
            self.abort(sequence_id)

    def fail(self, error: Exception) -> None:
        """End all sequences with an error. Does nothing after the end."""
        if self._aborts:
            self._error = error
            for sequence_id in list(self._aborts):
                self.abort(sequence_id)

    def attach(self, sequence_id: int, abort: Callable[[int], None]) -> None:
        """Add a sequence that a worker has accepted; `abort(sequence_id)` ends it there."""
        self._aborts[sequence_id] = abort
        self._max_unread += MAX_UNREAD_TOKENS

    def mark_begun(self, sequence_id: int, num_cached_tokens: int, at_s: float) -> None:
        """Note that a worker computed the first part of a sequence."""
        self.cached_tokens[sequence_id] = num_cached_tokens
        if self.begun_s is None:
            self.begun_s = at_s
        self._begin()

    def push(self, token: GeneratedToken, at_s: float) -> None:
        """Add a token of an active sequence; its finish_reason ends the sequence."""
        self._unread.append(ArrivedToken(at_s, token))
        if token.finish_reason is not None:
            del self._aborts[token.sequence_id]
            if not self._aborts:
                self._end()
        # A reader that waits here is not slow: the loop has not run it yet.
        if len(self._unread) > self._max_unread and self._waiter is None:
            self.fail(
                Overloaded(
                    f"the reader is {len(self._unread)} tokens behind, so generation was stopped; read faster",
                    retry_after_s=_RETRY_AFTER_S,
                )
            )
        self._wake()

    def fail_sequence(self, sequence_id: int, error: Exception) -> None:
        """End the feed with the error of one sequence."""
        if self._error is None:
            self._error = error
        if self._aborts.pop(sequence_id, None) is not None and not self._aborts:
            self._end()
        for other in list(self._aborts):
            self.abort(other)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
