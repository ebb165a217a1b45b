"""The permits of requests in an engine process: the server has admitted them, and counts their tokens."""

import asyncio
from collections.abc import Callable

from frameworks.core.tenants import Tenant
from frameworks.engine.process.wire.messages import Counted
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
