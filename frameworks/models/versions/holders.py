"""Hold the references of requests to one version of a model."""

import asyncio
from collections.abc import Iterator

from frameworks.scheduling.admission import Permit


class Holders:
    """The requests that hold a reference, or wait for a load. Owned by the event loop.

    `awaiting_load`: they become holders of the instances when the version is loaded. Draining the old instances must
    not wait for them.
    """

    def __init__(self) -> None:
        self.loaded: set[Permit] = set()
        self.awaiting_load: set[Permit] = set()
        self._idle: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self.loaded) + len(self.awaiting_load)

    def __iter__(self) -> Iterator[Permit]:
        yield from (*self.loaded, *self.awaiting_load)

    def note_loaded(self) -> None:
        """Give the requests that wait references to the loaded instances."""
        self.loaded |= self.awaiting_load
        self.awaiting_load.clear()

    def release(self, permit: Permit) -> None:
        """Forget a request. The last one of the loaded instances completes `idle_future`."""
        self.awaiting_load.discard(permit)
        self.loaded.discard(permit)
        if not self.loaded and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def idle_future(self) -> asyncio.Future[None]:
        """Return a future that is done when no request holds a reference to the loaded instances. Do not cancel it."""
        if self._idle is None:
            self._idle = asyncio.get_running_loop().create_future()
        return self._idle
