"""Generations whose text an engine process computes."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from frameworks.core.errors import DeadlineExceeded, Overloaded
from frameworks.engine.contract import Run, TokenTimes
from frameworks.engine.generating.stream import join_pieces
from frameworks.engine.process.wire.messages import Generate, TextDeltas
from frameworks.engine.process.wire.serialization import request_to_plain, tenant_to_plain
from frameworks.generation.types import GenerateAnswer, GenerateRequest, TextDelta, Usage
from frameworks.scheduling.steps.token_feed import MAX_UNREAD_TOKENS

_RETRY_AFTER_S = 1.0


class GenerationCall:
    """Implement Generation. Owned by the event loop. It may run again after a crash until its first text is read."""

    def __init__(
        self,
        number: int,
        run: Run,
        request: GenerateRequest,
        times: TokenTimes,
        left_s: float | None,
        in_pieces: bool,
        end: Callable[["GenerationCall"], None],
    ) -> None:
        """`end` is called once, when it needs the process no longer. `left_s`: seconds until the deadline."""
        self.id = number
        self.tenant = run.permit.tenant
        self.budget = run.permit.token_budget
        self.has_begun = False
        self.has_streamed = False
        self.is_counted = False
        """Whether the tokens of its prompts are counted in the budget."""
        self.is_over = False
        self._run = run
        self.request = request
        self._times = times
        self._in_pieces = in_pieces
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._opened_s = time.perf_counter()
        self._begun_s: float | None = None
        self._pieces: deque[TextDelta] = deque()
        self._usage = Usage(0, 0)
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._is_accepted = False
        self._is_withheld = False
        self.on_over: Callable[[], None] = _ignore
        """Called once, when it needs the process no longer, unless it is set later."""
        self._max_unread = MAX_UNREAD_TOKENS * len(request.prompts) * request.num_choices
        self._deadline: asyncio.TimerHandle | None = None
        self.deadline_s: float | None = None
        if left_s is not None:
            self.deadline_s = self._loop.time() + left_s
            late = DeadlineExceeded(
                "the text was not completed within timeout_ms; allow more time or ask for fewer tokens"
            )
            self._deadline = self._loop.call_at(self.deadline_s, self.fail, late)

    @property
    def usage(self) -> Usage:
        return self._usage

    def message(self) -> Generate:
        """Return the message that runs it."""
        run = self._run
        return Generate(
            self.id,
            request_to_plain(self.request),
            run.priority,
            tenant_to_plain(self.tenant),
            run.timings.started_s,
            None if self.deadline_s is None else self.deadline_s - self._loop.time(),
            self._in_pieces,
            self.budget is not None and not self.is_counted,
        )

    async def accepted(self) -> None:
        """Wait until the prompts are tokenized and within the limits. Raises the error that refuses the request."""
        try:
            while not self._is_accepted:
                await self._wait()
        except BaseException:
            self.close()
            raise

    def push(self, message: TextDeltas) -> None:
        """Add text of the process."""
        self._is_accepted = True
        if self.is_over:
            return
        for _ in range(message.begun):
            self._begin()
        if message.first_s is not None:
            self._times.observe_first(message.first_s)
        for seconds in message.token_s:
            self._times.observe_next(seconds)
        generated = message.usage.tokens_generated - self._usage.tokens_generated
        if self.budget is not None and generated > 0:
            self.budget.use(generated)
        self._usage = message.usage
        self._pieces.extend(message.pieces)
        if message.is_over:
            self._stop()
        elif len(self._pieces) > self._max_unread and self._waiter is None and not self._is_withheld:
            self.fail(
                Overloaded(
                    f"the reader is {len(self._pieces)} tokens behind, so generation was stopped; read faster",
                    retry_after_s=_RETRY_AFTER_S,
                )
            )
        self._wake()

    def fail(self, error: Exception) -> None:
        """End with an error, after the pieces before it were read."""
        if not self.is_over:
            self._error = error
            self._stop()
            self._wake()

    def __aiter__(self) -> "GenerationCall":
        return self

    async def __anext__(self) -> TextDelta:
        try:
            while not self._is_readable:
                if self.is_over and self._error is None:
                    raise StopAsyncIteration
                await self._wait()
        except BaseException:
            self.close()
            raise
        self.has_streamed = True
        return self._pieces.popleft()

    def ready(self) -> list[TextDelta]:
        if not self._is_readable:
            return []
        self.has_streamed = True
        pieces = list(self._pieces)
        self._pieces.clear()
        return pieces

    async def collect(self) -> GenerateAnswer:
        # Nothing is read before the end, so that the request can run again until then.
        try:
            while not self.is_over:
                await self._wait()
            if self._error is not None:
                raise self._error
        except BaseException:
            self.close()
            raise
        choices = join_pieces(self._pieces, len(self.request.prompts) * self.request.num_choices)
        return GenerateAnswer(choices, self.usage)

    def close(self) -> None:
        self._pieces.clear()
        self._stop()

    def restart(self) -> None:
        """Forget the text of a process that has ended; another one generates it again."""
        assert not self.has_streamed
        self._pieces.clear()
        self._usage = Usage(0, 0)
        self.has_begun = self._is_withheld = False

    def withhold(self) -> None:
        """Deliver no text of this run before its end: the request can run again until then."""
        self._is_withheld = True

    def begin(self) -> None:
        """Note that its sequences begin to run; each is counted by `push`."""
        self.has_begun = True

    @property
    def _is_readable(self) -> bool:
        """Whether a piece can be read now."""
        return bool(self._pieces) and (self.is_over or not self._is_withheld)

    async def _wait(self) -> None:
        """Wait for a message. Raises the error of the request, and one that ended it."""
        if self._error is not None:
            raise self._error
        assert self._waiter is None, "one reader at a time"
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _begin(self) -> None:
        self.has_begun = True
        if self._begun_s is None:
            self._begun_s = time.perf_counter()
        self._run.permit.begin_text()

    def _stop(self) -> None:
        """Add the times of the generation, and end it in the process."""
        if self.is_over:
            return
        self.is_over = True
        if self._deadline is not None:
            self._deadline.cancel()
        now_s, timings = time.perf_counter(), self._run.timings
        if self._begun_s is None:
            timings.queued(self._opened_s, now_s)
        else:
            timings.queued(self._opened_s, self._begun_s)
            timings.computed(self._begun_s, now_s)
        # The text that is still to be sent needs no model.
        self._run.permit.release_version()
        self._end(self)
        self.on_over()


def _ignore() -> None:
    pass
