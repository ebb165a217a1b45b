"""Cache responses once for all workers: the supervisor holds them, and equal requests of all workers run once."""

from functools import partial
from typing import cast

from app.workers.messages import DropRun, FindResponse, FoundResponse, StoreResponse
from app.workers.shared.single_flight import Caller, SharedRuns
from frameworks.engine.process.wire.messages import ErrorState
from frameworks.replicas.control import ControlLink, Workers
from memory.result_cache import ResultCache


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
