"""Requests of the server that an engine process runs."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from frameworks.core.channel.channel import Channel
from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings
from frameworks.engine.contract import Engine, Run
from frameworks.engine.process.wire.messages import Answer, Counted, FromEngine, Generate, Infer, TextDeltas, ToEngine
from frameworks.engine.process.wire.serialization import answer_to_plain
from frameworks.generation.types import GenerateRequest, Generation, TextDelta
from frameworks.scheduling.admission import Permit, RequestLimit, TokenBudget


class AskedBudget:
    """Implements TokenBudget: asks the server whether the tenant has tokens left. Owned by the event loop."""

    def __init__(self, number: int, send: Callable[[Counted], None]) -> None:
        """`number`: of the request."""
        self._number = number
        self._send = send
        self._may_run: asyncio.Future[None] | None = None

    async def start(self, tokens: int) -> None:
        """Wait until the server lets the request run. It cancels a request whose tenant has no tokens left."""
        self._may_run = asyncio.get_running_loop().create_future()
        self._send(Counted(self._number, tokens))
        await self._may_run

    def proceed(self) -> None:
        """Let the request run. Ignored if it does not wait."""
        if self._may_run is not None and not self._may_run.done():
            self._may_run.set_result(None)

    def use(self, tokens: int) -> None:
        """Do nothing: the server counts the generated tokens of each message."""


class CallPermit(Permit):
    """Reports that a request, or one of its texts, begins to run. It never waits for a place."""

    __slots__ = ("_note", "token_budget")

    def __init__(
        self, limit: RequestLimit, tenant: Tenant, note: Callable[[], None], budget: TokenBudget | None
    ) -> None:
        """`limit`: of the process, without bounds. `note`: called for each text and each batch that begins."""
        super().__init__(limit, tenant)
        self._note = note
        self.token_budget = budget

    def begin(self) -> None:
        self._has_begun = True
        self._note()

    def begin_text(self) -> None:
        self._has_begun = True
        self._note()


PIECES_S = 0.05
"""The longest delay of text whose reader needs it whole."""
MAX_BUFFERED_BYTES = 4 * 1024**2
"""Generations are not read while so many bytes wait for the server; their feeds are bounded."""
_CONGESTED_S = 0.01


class HostedClient:
    """A client of the engine process. `calls`: its requests in progress, by their numbers. `waiting`: number of those
    that wait at the client.
    """

    __slots__ = ("calls", "sender", "waiting")

    def __init__(self, sender: Channel[ToEngine]) -> None:
        self.calls: dict[int, HostedCall] = {}
        self.sender = sender
        self.waiting = 0


class HostedCall:
    """A request in progress. `future`: of its result; None until it is submitted."""

    __slots__ = ("_note_begun", "budget", "future", "has_begun", "id", "timings")

    def __init__(self, message: Infer | Generate, note_begun: Callable[["HostedCall"], None]) -> None:
        """`note_begun`: called when the request begins to run."""
        self.id = message.id
        self.timings = Timings(started_s=message.arrived_s)
        self.has_begun = False
        self.future: asyncio.Future[Any] | None = None
        self.budget: AskedBudget | None = None
        self._note_begun = note_begun

    def begin(self) -> None:
        """Note that a part of it begins to run. May be called again."""
        if not self.has_begun:
            self.has_begun = True
            self._note_begun(self)

    def run_of(self, message: Infer | Generate, tenant: Tenant, limit: RequestLimit, sender: Channel[ToEngine]) -> Run:
        """Return the run of a request that tokenizes. Its tokens are counted by the server where they are limited."""
        if message.is_metered:
            self.budget = AskedBudget(message.id, sender.send)
        return Run(CallPermit(limit, tenant, self.begin, self.budget), self.timings, message.priority)

    def last_message(self, result: Any) -> FromEngine:
        """Return the message that completes the request."""
        timings = self.timings
        return Answer(
            self.id,
            answer_to_plain(result),
            timings.queue_s,
            timings.compute_s,
            timings.decode_s,
            timings.batch_rows,
            [] if timings.trace is None else timings.trace.runs,
        )


class HostedGeneration(HostedCall):
    """A generation in progress. Implements TokenTimes."""

    __slots__ = (
        "_begun",
        "_first_s",
        "_generation",
        "_in_pieces",
        "_left_s",
        "_sender",
        "_sent_s",
        "_token_s",
        "_unsent",
    )

    def __init__(self, message: Generate, note_begun: Callable[[HostedCall], None], sender: Channel[ToEngine]) -> None:
        super().__init__(message, note_begun)
        self._left_s = message.left_s
        self._in_pieces = message.in_pieces
        self._sender = sender
        self._generation: Generation | None = None
        self._unsent: list[TextDelta] = []
        self._first_s: float | None = None
        self._token_s: list[float] = []
        self._begun = 0
        self._sent_s = 0.0

    def begin(self) -> None:
        """Note that one of its texts begins to run."""
        self.has_begun = True
        self._begun += 1
        self._note_begun(self)

    def observe_first(self, seconds: float) -> None:
        self._first_s = seconds

    def observe_next(self, seconds: float) -> None:
        self._token_s.append(seconds)

    async def run(self, engine: Engine, run: Run, request: GenerateRequest) -> TextDeltas:
        """Send the text as it is generated; return its last message. Raises as Engine.generate and Generation."""
        generation = await engine.generate(run, request, self, self._left_s, self._in_pieces)
        self._generation = generation
        try:
            # The server waits for it: the request is accepted.
            self._send()
            async for piece in generation:
                self._unsent.append(piece)
                self._unsent += generation.ready()
                if self._in_pieces or time.perf_counter() - self._sent_s >= PIECES_S:
                    self._send()
                while self._sender.buffered_bytes > MAX_BUFFERED_BYTES:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(_CONGESTED_S)
        except Exception:
            self._send()
            raise
        finally:
            generation.close()
        return self._pieces(is_over=True)

    def send_begun(self) -> None:
        """Report the texts that have begun, unless a message with them was sent."""
        if self._begun and self._generation is not None:
            self._send()

    def last_message(self, result: Any) -> FromEngine:
        assert isinstance(result, TextDeltas)
        return result

    def _send(self) -> None:
        self._sent_s = time.perf_counter()
        self._sender.send(self._pieces(is_over=False))

    def _pieces(self, is_over: bool) -> TextDeltas:
        """Return the message with what is unsent."""
        assert self._generation is not None
        unsent, self._unsent = self._unsent, []
        first_s, self._first_s = self._first_s, None
        token_s, self._token_s = self._token_s, []
        begun, self._begun = self._begun, 0
        return TextDeltas(self.id, unsent, self._generation.usage, first_s, token_s, begun, is_over)
