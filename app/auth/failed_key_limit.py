"""Rate-limit addresses that send wrong keys (brute force). Memory is bounded for any number of addresses."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from ipaddress import IPv6Address, ip_address

NoteFailure = Callable[[str], Awaitable[bool | None]]
"""Count a failure of an address in the table of all processes; return whether it has had too many, None where that
table cannot be reached."""

_MAX_ADDRESSES = 4096
_BURST = 10.0
_REFILL_S = 6.0
_DELAY_S = 0.5
_MAX_DELAYED = 256


class FailedKeys:
    """Count the failures of each address: a token bucket with `burst` tokens, one more every `refill_s` seconds.

    Pure. At `max_addresses` the address whose last failure is the oldest is forgotten. A network of IPv6 (/64) is one
    address: each of its members can take any address of it.
    """

    def __init__(
        self,
        max_addresses: int = _MAX_ADDRESSES,
        burst: float = _BURST,
        refill_s: float = _REFILL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_addresses = max_addresses
        self._burst = burst
        self._refill_s = refill_s
        self._clock = clock
        # Tokens that are left, and the time of the count, by address.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def note(self, address: str) -> bool:
        """Count a failure of an address; return whether it has had too many."""
        network, now_s = network_of(address), self._clock()
        tokens, since_s = self._buckets.pop(network, (self._burst, now_s))
        tokens = min(self._burst, tokens + (now_s - since_s) / self._refill_s)
        self._buckets[network] = max(0.0, tokens - 1.0), now_s
        if len(self._buckets) > self._max_addresses:
            self._buckets.popitem(last=False)
        return tokens < 1.0


class Slowdown:
    """Delay the refusals of an address that tries keys. Owned by the event loop.

    Valid keys are never delayed, from any address. A delayed request holds its connection, and no permit.
    """

    def __init__(
        self, failed: FailedKeys | None = None, delay_s: float = _DELAY_S, note_shared: NoteFailure | None = None
    ) -> None:
        """`note_shared`: of the table that counts in place of `failed` while it can be reached."""
        self._failed = FailedKeys() if failed is None else failed
        self._note_shared = note_shared
        self._delay_s = delay_s
        self._delayed = 0

    async def wait(self, address: str) -> None:
        """Count a failure, and return after the delay if the address has had too many.

        At _MAX_DELAYED delayed requests further ones are refused at once.
        """
        if not await self._note(address) or self._delayed >= _MAX_DELAYED:
            return
        self._delayed += 1
        try:
            await asyncio.sleep(self._delay_s)
        finally:
            self._delayed -= 1

    async def _note(self, address: str) -> bool:
        is_slowed = None if self._note_shared is None else await self._note_shared(address)
        return self._failed.note(address) if is_slowed is None else is_slowed


def network_of(address: str) -> str:
    """Return an IPv4 address as it is, the /64 of an IPv6 address, and any other text as it is."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return parsed.packed[:8].hex()
