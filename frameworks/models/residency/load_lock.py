"""Load one model at a time: those that operators ordered go first."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class LoadLock:
    """A lock whose next holder is chosen when it is released. Owned by the event loop."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    @asynccontextmanager
    async def acquired(self, goes_first: Callable[[], bool]) -> AsyncIterator[None]:
        """Hold the lock within the block. `goes_first`: called at each release, as its result may change."""
        if self._is_taken:
            granted = asyncio.get_running_loop().create_future()
            self._waiting.append((goes_first, granted))
            try:
                await granted
            except asyncio.CancelledError:
                if granted.done() and not granted.cancelled():
                    self._pass_on()
                raise
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        self._waiting = [each for each in self._waiting if not each[1].done()]
        chosen = next((each for each in self._waiting if each[0]()), next(iter(self._waiting), None))
        if chosen is None:
            self._is_taken = False
            return
        self._waiting.remove(chosen)
        chosen[1].set_result(None)
