"""Bound the time until the request of a unary call has arrived."""

import time
from collections.abc import Callable, Iterator
from itertools import count

import grpc


class Arrivals:
    """The unary calls whose request has not arrived. Each holds a thread and counts towards the calls at once.

    Threads add and remove their calls in one atomic step each; the event loop cancels late ones.
    """

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._waiting: dict[int, tuple[float, grpc.ServicerContext]] = {}
        self._keys = count()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def receive(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes | None:
        """Wait for the request of a call; None if the call ended before. Runs in the call's thread."""
        key = next(self._keys)
        self._waiting[key] = self._clock(), context
        try:
            return next(requests, None)
        except grpc.RpcError:
            return None
        finally:
            del self._waiting[key]

    def cancel_late(self) -> None:
        """Cancel the calls that have waited for longer than the timeout. Thread-safe."""
        now_s = self._clock()
        for since_s, context in self._waiting.copy().values():
            if now_s - since_s <= self._timeout_s:
                break  # later calls have waited for less
            context.cancel()
