"""Count requests with wrong keys once for all workers: the supervisor has the table of addresses."""

import asyncio
from functools import partial
from typing import cast

from app.auth.failed_key_limit import FailedKeys
from app.workers.messages import FailedKeyNoted, NoteFailedKey
from frameworks.core.channel.messages import ChannelLost
from frameworks.replicas.control import ControlLink, Workers

_TIMEOUT_S = 1.0


class SharedFailures:
    """The supervisor's side. Owned by the event loop."""

    def __init__(self, workers: Workers, failed: FailedKeys | None = None) -> None:
        """Create it before any worker accepts connections. `failed`: None for an empty table."""
        self._failed = FailedKeys() if failed is None else failed
        workers.on_connect(self._connect)

    def _connect(self, link: ControlLink) -> None:
        link.handle(NoteFailedKey, partial(self._note, link))

    def _note(self, link: ControlLink, request: NoteFailedKey) -> None:
        link.send(FailedKeyNoted(request.id, self._failed.note(request.address)))


class WorkerFailures:
    """A worker's side: `note` is the `note_shared` of its Slowdown. Owned by the event loop."""

    def __init__(self, link: ControlLink, timeout_s: float = _TIMEOUT_S) -> None:
        """`timeout_s`: until the worker counts alone if the supervisor does not answer."""
        self._link = link
        self._timeout_s = timeout_s

    async def note(self, address: str) -> bool | None:
        """Count a failure of an address; return whether it has had too many in all workers.

        None where the supervisor is lost, or does not answer in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._link.ask(lambda number: NoteFailedKey(number, address))
        except (ChannelLost, TimeoutError):
            return None
        return cast(FailedKeyNoted, reply).is_delayed
