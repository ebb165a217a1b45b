"""Cache responses once for all workers: the supervisor holds them, and equal requests of all workers run once."""

from collections.abc import Hashable
from functools import partial
from typing import cast

from app.workers.messages import DropRun, FindResponse, FoundResponse, StoreResponse
from frameworks.engine.process.wire.messages import ErrorState
from frameworks.models.replicas.control import ControlLink, Workers
from memory.result_cache import ResultCache

Caller = tuple[Hashable, int]
"""A worker, and its number of the request."""
Key = tuple[str, bytes]
"""A model, and the digest of a request."""


class _Run:
    """A request that a caller runs. `waiting`: other callers, the longest waiting first."""

    __slots__ = ("caller", "waiting")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        # An ordered set.
        self.waiting: dict[Caller, None] = {}


class SharedRuns:
    """The runs of all workers. Pure: the owner sends what the methods return.

    Each key has at most one run. Each caller that waits is returned once: by `end`, or by `leave` or `lose` with the
    run that it takes over.
    """

    def __init__(self) -> None:
        self._runs: dict[Key, _Run] = {}
        # Of each caller that runs a request or waits.
        self._keys: dict[Caller, Key] = {}

    def __len__(self) -> int:
        """Return the number of callers that run a request or wait."""
        return len(self._keys)

    def join(self, caller: Caller, key: Key) -> bool:
        """Return whether a new caller runs the request; else it waits for the run of another one."""
        self._keys[caller] = key
        run = self._runs.get(key)
        if run is None:
            self._runs[key] = _Run(caller)
            return True
        run.waiting[caller] = None
        return False

    def key_of(self, caller: Caller) -> Key | None:
        """Return the key that the caller runs; None for any other caller."""
        key = self._keys.get(caller)
        return key if key is not None and self._runs[key].caller == caller else None

    def end(self, caller: Caller) -> list[Caller]:
        """End the run of a caller; return the callers that waited for its outcome.

        An empty list for a caller that runs nothing.
        """
        key = self.key_of(caller)
        if key is None:
            return []
        waiting = list(self._runs.pop(key).waiting)
        for each in (caller, *waiting):
            del self._keys[each]
        return waiting

    def leave(self, caller: Caller) -> Caller | None:
        """Forget a caller that was cancelled; return the caller that has to run the request now, if any."""
        key = self._keys.pop(caller, None)
        if key is None:
            return None
        run = self._runs[key]
        if run.caller != caller:
            del run.waiting[caller]
            return None
        if not run.waiting:
            del self._runs[key]
            return None
        run.caller = next(iter(run.waiting))
        del run.waiting[run.caller]
        return run.caller

    def lose(self, worker: Hashable) -> list[Caller]:
        """Forget all callers of a worker that was lost; return the callers that have to run their requests now."""
        lost = [caller for caller in self._keys if caller[0] == worker]
        # Those that wait first: no run is passed to a caller of the same worker.
        lost.sort(key=lambda caller: self.key_of(caller) is not None)
        return [following for caller in lost if (following := self.leave(caller)) is not None]


class SharedResponses:
    """The supervisor's side. Owned by the event loop."""

    def __init__(self, cache: ResultCache[bytes], workers: Workers) -> None:
        """Create it before any worker accepts connections."""
        self._cache = cache
        self._runs = SharedRuns()
        workers.on_connect(self._connect)
        workers.on_left(self._worker_lost)

    @property
    def size_bytes(self) -> int:
        return self._cache.size_bytes

    @property
    def evictions(self) -> int:
        return self._cache.evictions

    def drop(self, model: str) -> None:
        """Drop the responses of a model that was replaced or unloaded."""
        self._cache.drop(model)

    def _connect(self, link: ControlLink) -> None:
        link.handle(FindResponse, partial(self._find, link))
        link.handle(StoreResponse, partial(self._store, link))
        link.handle(DropRun, partial(self._drop_run, link))

    def _find(self, link: ControlLink, request: FindResponse) -> None:
        key = request.name, request.digest
        answer = self._cache.get(key)
        if answer is not None:
            _reply((link, request.id), answer=answer)
        elif self._runs.join((link, request.id), key):
            link.send(FoundResponse(request.id))

    def _store(self, link: ControlLink, message: StoreResponse) -> None:
        key = self._runs.key_of((link, message.id))
        if key is None:
            return
        for caller in self._runs.end((link, message.id)):
            _reply(caller, answer=message.answer)
        self._cache.put(key, message.answer, key[0], len(key[1]) + len(message.answer))

    def _drop_run(self, link: ControlLink, message: DropRun) -> None:
        caller = link, message.id
        if message.error is None and message.is_shared:
            self._run_next(self._runs.leave(caller))
            return
        waiting = self._runs.end(caller)
        for each in waiting:
            _reply(each, error=message.error, is_shared=message.is_shared)

    def _worker_lost(self, link: ControlLink) -> None:
        for caller in self._runs.lose(link):
            self._run_next(caller)

    def _run_next(self, caller: Caller | None) -> None:
        if caller is not None:
            _reply(caller)


def _reply(
    caller: Caller, *, answer: bytes | None = None, error: ErrorState | None = None, is_shared: bool = True
) -> None:
    link, number = cast(tuple[ControlLink, int], caller)
    if answer is not None and link.is_full:
        # The worker reads too slowly.
        link.send(FoundResponse(number, is_shared=False))
    else:
        link.send(FoundResponse(number, answer, error, is_shared))
