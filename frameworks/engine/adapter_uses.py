"""Count the generations that use each adapter of a model, so that an adapter is unloaded after the last of them."""

import asyncio
from collections import Counter
from collections.abc import Callable

from frameworks.core.errors import AdapterNotFound
from frameworks.generation.types import GenerationSpec


class AdapterUse:
    """A reference of one generation to an adapter. `number`: as of AdapterSpec."""

    __slots__ = ("_on_release", "number")

    def __init__(self, number: int, on_release: Callable[[int], None]) -> None:
        self.number = number
        self._on_release: Callable[[int], None] | None = on_release

    def release(self) -> None:
        """End the use. Harmless when repeated."""
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release(self.number)


class AdapterUses:
    """Owned by the event loop."""

    def __init__(self, model: str) -> None:
        """`model`: its name, for messages."""
        self._model = model
        self._uses: Counter[int] = Counter()
        self._idle: dict[int, asyncio.Event] = {}

    def use(self, name: str, spec: GenerationSpec) -> AdapterUse:
        """Return a reference to an adapter by its name. Raises AdapterNotFound."""
        number = next((each.number for each in spec.adapters if each.name == name), None)
        if number is None:
            raise AdapterNotFound(self._model, name, [each.name for each in spec.adapters])
        self._uses[number] += 1
        return AdapterUse(number, self._release)

    async def drained(self, number: int) -> None:
        """Wait until no generation uses the adapter."""
        while self._uses[number]:
            await self._idle.setdefault(number, asyncio.Event()).wait()

    def _release(self, number: int) -> None:
        self._uses[number] -= 1
        if not self._uses[number]:
            del self._uses[number]
            event = self._idle.pop(number, None)
            if event is not None:
                event.set()
