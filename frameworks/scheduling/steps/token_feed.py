"""One request's tokens on their way from the workers to its reader."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from frameworks.errors import Overloaded
from frameworks.generation.types import GeneratedToken

MOST_UNREAD_TOKENS = 1024
"""Of each sequence: a reader that is further behind than these is given up."""

_RETRY_AFTER_S = 1.0


class ArrivedToken(NamedTuple):
    """A token, and when it was there (time.perf_counter)."""

    arrived_s: float
    token: GeneratedToken


class TokenFeed:
    """The tokens of all sequences of one request, in order of arrival: workers put them in, one reader takes them out.

    It ends when each of its sequences has, or with the first error, which ends the others too. What waits for the
    reader is bounded, and the reader is woken once a step at most. Owned by the event loop.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        """`begin` is called when the first of it is computed."""
        self._begin = begin
        self._aborts: dict[int, Callable[[int], None]] = {}
        self._unread: list[ArrivedToken] = []
        self._most_unread = 0
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.begun_s: float | None = None
        """time.perf_counter when the first of it began to be computed; None before."""
        self.cached_tokens: dict[int, int] = {}
        """Of each sequence that has begun, in order of that: the tokens of its prompt that were known already."""

    @property
    def is_over(self) -> bool:
        """Whether nothing comes in any more. Something may still be unread."""
        return not self._aborts

    async def read(self) -> list[ArrivedToken]:
        """What came since the last time; waits for something. Empty at the end. One reader at a time.

        Raises what ended it early, when all that came before has been read.
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
        """Ends one sequence, of which the reader wants no more. Harmless where it has ended."""
        abort = self._aborts.pop(sequence_id, None)
        if abort is not None:
            abort(sequence_id)
            self._wake()

    def close(self) -> None:
        """Ends all sequences; what is unread is dropped. Harmless when called again, or after the end."""
        self._unread.clear()
        for sequence_id in list(self._aborts):
            self.abort(sequence_id)

    def fail(self, error: Exception) -> None:
        """Ends all sequences with an error. Harmless after the end."""
        if self._aborts:
            self._error = error
            for sequence_id in list(self._aborts):
                self.abort(sequence_id)

    def expect(self, sequence_id: int, abort: Callable[[int], None]) -> None:
        """A worker has taken a sequence, which it lets go when `abort` is called with its id."""
        self._aborts[sequence_id] = abort
        self._most_unread += MOST_UNREAD_TOKENS

    def begun(self, sequence_id: int, num_cached_tokens: int, at_s: float) -> None:
        """The first of a sequence was computed."""
        self.cached_tokens[sequence_id] = num_cached_tokens
        if self.begun_s is None:
            self.begun_s = at_s
            self._begin()

    def push(self, token: GeneratedToken, at_s: float) -> None:
        """A token of a sequence that has not ended; with its finish_reason it has."""
        self._unread.append(ArrivedToken(at_s, token))
        if token.finish_reason is not None:
            del self._aborts[token.sequence_id]
        # One that waits here is not slow: the loop has not come round to it.
        if len(self._unread) > self._most_unread and self._waiter is None:
            self.fail(
                Overloaded(
                    f"the reader is {len(self._unread)} tokens behind: it reads too slowly, so the rest was given up",
                    retry_after_s=_RETRY_AFTER_S,
                )
            )
        self._wake()

    def failed(self, sequence_id: int, error: Exception) -> None:
        """A sequence ended with an error: so does the feed."""
        if self._error is None:
            self._error = error
        self._aborts.pop(sequence_id, None)
        for other in list(self._aborts):
            self.abort(other)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
