"""Requests of the server to one engine process that have no answer yet: sent, or held until its restart."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from frameworks.core.channel.arrays import ArrayWriter
from frameworks.core.channel.messages import MessageTooLarge, ProtocolError
from frameworks.core.errors import Draining, InvalidInput, ModelFailed, Overloaded, RoundhouseError
from frameworks.engine.process.client.calls import InferCall
from frameworks.engine.process.client.generations import GenerationCall
from frameworks.engine.process.client.poison_requests import PROCESS_RULE, PoisonRequests, digest_of
from frameworks.engine.process.client.retries import InFlight, RetryQueue
from frameworks.engine.process.link import Link
from frameworks.engine.process.wire.messages import (
    Answer,
    Begun,
    Cancel,
    Counted,
    EndRequests,
    Failed,
    FromEngine,
    Proceed,
    TextDeltas,
)
from frameworks.engine.process.wire.serialization import error_from_plain, request_to_plain
from frameworks.scheduling.admission import TokenBudget

Call = InferCall | GenerationCall


class OpenCalls:
    """Sends requests, hands their answers to the callers, and sends requests again after a crash. Owned by the event
    loop.

    A request that is held stays so over further crashes: each of them ends a run of another request, which has few. A
    request runs again after a crash unless a part of its text was read. The text of a suspect that runs
    concurrently with others is therefore delivered at its end.
    """

    def __init__(
        self,
        name: str,
        poison_requests: PoisonRequests,
        check_outage: Callable[[], None],
        on_settled: Callable[[], None],
    ) -> None:
        """`name`: of the model. `check_outage`: called for a request while the process is down; raises ModelFailed
        where no restart is near. `on_settled`: called after a restart, when no suspect is left.
        """
        self._name = name
        self._poison_requests = poison_requests
        self._check_outage = check_outage
        self._on_settled = on_settled
        self._calls: dict[int, Call] = {}
        self._retries = RetryQueue(poison_requests, lambda number: _digest(self._calls[number]))
        self._charging: set[asyncio.Task[None]] = set()
        self._is_settling = False
        self._is_sending = False
        self.link: Link | None = None
        """The process; None while it is down."""
        self.has_ended_requests = False
        self.idle_since_s = time.monotonic()
        """When the last request ended, by time.monotonic."""
        self.handlers: Mapping[type[FromEngine], Callable[[Any], None]] = {
            Answer: self._complete,
            Begun: self._begin,
            Failed: self._fail,
            TextDeltas: self._push,
            Counted: self._count_tokens,
        }

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def num_suspects(self) -> int:
        """Number of requests that may have ended the process, and have no outcome yet."""
        return self._retries.num_suspects

    @property
    def holds_any(self) -> bool:
        """Whether a request waits for a restart, or for the outcome of a suspect."""
        return not self._retries.is_empty

    def infer(self, call: InferCall) -> "asyncio.Future[Any]":
        """Send a request with one answer; return the future of its answer. Raises as `open`."""
        self.open(call)
        call.future.add_done_callback(partial(self._end_infer, call))
        return call.future

    def open(self, call: Call) -> None:
        """Send a request, or hold it while a restart is near. Raises ModelFailed, Draining, Overloaded."""
        if self.has_ended_requests:
            raise Draining.unloaded(self._name)
        if self._poison_requests.refuses_any:
            self._check_suspect(call)
        link = self.link
        if link is not None and self._retries.is_empty:
            if link.is_full:
                raise Overloaded(f'model "{self._name}": its process is behind with earlier requests; try again', 1.0)
            self._calls[call.id] = call
            self._send(link, call)
            return
        if link is None:
            self._check_outage()
        self._calls[call.id] = call
        self._retries.hold(call.id)

    def end(self, call: Call) -> None:
        """Forget a request that its caller needs no longer, and end it in the process."""
        if self._remove(call.id, is_completed=False) is not None and self.link is not None:
            self.link.send(Cancel(call.id))

    def end_requests(self) -> None:
        """Refuse further requests, and fail those that are held; the process fails those that wait there."""
        self.has_ended_requests = True
        self.fail_held(lambda: Draining.unloaded(self._name))
        if self.link is not None:
            self.link.send(EndRequests())

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """Fail all requests, each with an error of its own."""
        self.fail(list(self._calls), error)

    def fail_held(self, error: Callable[[], Exception]) -> None:
        """Fail the requests that are held, each with an error of its own."""
        self.fail(self._retries.give_up(), error)

    def fail(self, ids: Iterable[int], error: Callable[[], Exception]) -> None:
        """Fail requests, each with an error of its own."""
        for number in ids:
            self._fail_call(number, error())

    def interrupt(self, is_announced: bool) -> list[int]:
        """Hold the requests that may run again; return the numbers of those that have to fail now.

        `is_announced`: as of Loss.
        """
        self._is_settling = True
        note = self._retries.stopped if is_announced else self._retries.crashed
        return note([InFlight(call.id, call.has_begun, call.has_streamed) for call in self._calls.values()])

    def restart(self) -> None:
        """Note that the runs of all requests that are left were interrupted."""
        for call in self._calls.values():
            call.restart()

    def send_due(self) -> None:
        """Send the requests that no longer wait for a suspect."""
        if self._is_sending:
            return  # a request failed as it was sent; those after it follow
        self._is_sending = True
        try:
            while self.link is not None and (due := self._retries.due()):
                runs_beside = self._retries.runs_beside
                for number in due:
                    call = self._calls[number]
                    if runs_beside and isinstance(call, GenerationCall):
                        call.withhold()
                    self._send_again(self.link, call)
        finally:
            self._is_sending = False
        if self._is_settling and self.link is not None and not self._retries.num_suspects:
            self._is_settling = False
            self._on_settled()

    def stop_charging(self) -> None:
        """Charge no tenant any more."""
        for task in self._charging:
            task.cancel()

    def _send(self, link: Link, call: Call) -> None:
        try:
            link.send(call.message())
        except MessageTooLarge as error:
            self._fail_call(call.id, InvalidInput("inputs", f"{error.message}; send less at once"))
        except (InvalidInput, TypeError) as error:
            self._fail_call(call.id, error)

    def _send_again(self, link: Link, call: Call) -> None:
        """Send a request that was held, unless a crash has shown meanwhile that it ends the process."""
        try:
            if self._poison_requests.refuses_any:
                self._check_suspect(call)
        except ModelFailed as error:
            self._fail_call(call.id, error)
        else:
            self._send(link, call)

    def _check_suspect(self, call: Call) -> None:
        left_s = self._poison_requests.refused_for_s(_digest(call))
        if left_s:
            crashes = self._poison_requests.rule.crashes
            times = "twice" if crashes == PROCESS_RULE.crashes else f"{crashes} times"
            raise ModelFailed(
                f'model "{self._name}": the same request ended its process {times}; change it, or try again in '
                f"{left_s:.0f} s",
                left_s,
            )

    def _end_infer(self, call: InferCall, _: object) -> None:
        # Absent after an answer or an error; else the caller has cancelled it.
        if call.id in self._calls:
            self.end(call)

    def _fail_call(self, number: int, error: Exception) -> None:
        call = self._remove(number, is_completed=False)
        if call is not None:
            call.fail(error)

    def _remove(self, number: int, is_completed: bool) -> Call | None:
        """Forget a request, and send those that waited for it. None where it is unknown."""
        if number not in self._calls:
            return None
        is_waited_for = not self._retries.is_empty
        if is_waited_for:
            # It needs the request, for its digest.
            self._retries.ended(number, is_completed)
        call = self._calls.pop(number)
        if not self._calls:
            self.idle_since_s = time.monotonic()
        if is_waited_for:
            self.send_due()
        return call

    def _complete(self, message: Answer) -> None:
        call = self._calls.get(message.id)
        if call is None:
            return  # cancelled
        if type(call) is not InferCall:
            raise ProtocolError("expected pieces of a generation, got an answer")
        call.complete(message)
        self._remove(message.id, is_completed=True)

    def _begin(self, message: Begun) -> None:
        for number in message.ids:
            call = self._calls.get(number)
            if call is not None:
                call.begin()

    def _fail(self, message: Failed) -> None:
        self._fail_call(message.id, error_from_plain(message.error))

    def _push(self, message: TextDeltas) -> None:
        call = self._calls.get(message.id)
        if call is None:
            return
        if not isinstance(call, GenerationCall):
            raise ProtocolError("expected an answer, got pieces of a generation")
        if message.is_over:
            # Before its end is reported: it needs no Cancel.
            self._remove(message.id, is_completed=True)
        call.push(message)

    def _count_tokens(self, message: Counted) -> None:
        call = self._calls.get(message.id)
        if call is None:
            return
        if call.budget is None or call.is_counted:
            raise ProtocolError("expected no count of tokens for a request without limit, got one")
        task = asyncio.get_running_loop().create_task(self._charge(call, call.budget, message.tokens))
        self._charging.add(task)
        task.add_done_callback(self._charging.discard)

    async def _charge(self, call: Call, budget: TokenBudget, tokens: int) -> None:
        """Count the tokens of a request, and let the process run it; end it where its tenant has none left."""
        try:
            await budget.start(tokens)
        except RoundhouseError as error:
            if call.id in self._calls and self.link is not None:
                self.link.send(Cancel(call.id))
            self._fail_call(call.id, error)
            return
        call.is_counted = True
        if call.id in self._calls and self.link is not None:
            self.link.send(Proceed(call.id))


def _digest(call: Call) -> bytes:
    """Identify the content of a request."""
    return digest_of(msgspec.msgpack.encode(request_to_plain(call.request), enc_hook=ArrayWriter().write))
