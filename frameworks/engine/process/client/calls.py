"""Requests of the server to an engine process that have no answer yet."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from frameworks.core.tenants import Tenant
from frameworks.core.timings import Timings
from frameworks.engine.contract import EngineRequest
from frameworks.engine.process.wire.messages import Answer, Infer
from frameworks.engine.process.wire.serialization import answer_from_plain, request_to_plain, tenant_to_plain
from frameworks.scheduling.admission import TokenBudget
from frameworks.types import TokenBatch


class InferCall:
    """A request with one answer. It may run again after a crash, as nothing of its answer was sent.

    `future` is cancelled by the caller; the owner of the call then ends it in the process.
    """

    __slots__ = (
        "_begin",
        "budget",
        "future",
        "has_begun",
        "id",
        "is_counted",
        "priority",
        "request",
        "tenant",
        "timings",
    )

    has_streamed = False

    def __init__(
        self,
        number: int,
        request: EngineRequest | TokenBatch,
        priority: int,
        begin: Callable[[], None],
        timings: Timings,
        tenant: Tenant,
        budget: TokenBudget | None,
    ) -> None:
        """`begin` is called when it begins to run. `budget`: of the tenant's tokens; None without a limit."""
        self.id = number
        self.request = request
        self.priority = priority
        self._begin = begin
        self.timings = timings
        self.tenant = tenant
        self.budget = budget
        self.has_begun = False
        self.is_counted = False
        """Whether its tokens are counted in the budget."""
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        return self.future.done()

    def message(self) -> Infer:
        """Return the message that runs it."""
        trace = self.timings.trace
        return Infer(
            self.id,
            request_to_plain(self.request),
            self.priority,
            tenant_to_plain(self.tenant),
            self.timings.started_s,
            self.budget is not None and not self.is_counted,
            b"" if trace is None else trace.span,
        )

    def restart(self) -> None:
        """Note that its run was interrupted."""
        self.has_begun = False

    def begin(self) -> None:
        """Note that it is part of a run."""
        self.has_begun = True
        self._begin()

    def complete(self, message: Answer) -> None:
        """Hand the answer to the caller. Raises ProtocolError for a damaged one."""
        answer = answer_from_plain(message.answer)
        if not self.has_begun:
            self.begin()
        timings = self.timings
        # The process tells durations, as one on another machine has another clock. It answers when it has computed.
        # It may send anything, but no phase begins before the request.
        end_s = time.perf_counter()
        for add, seconds in (
            (timings.computed, message.compute_s),
            (timings.queued, message.queue_s),
            (timings.decoded, message.decode_s),
        ):
            begun_s = max(end_s - max(0.0, seconds), timings.started_s)
            add(begun_s, end_s)
            end_s = begun_s
        timings.batch_rows = max(timings.batch_rows, message.batch_rows)
        if timings.trace is not None:
            timings.trace.add(message.runs)
        if not self.future.done():
            self.future.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Hand the error to the caller."""
        if not self.future.done():
            self.future.set_exception(error)
