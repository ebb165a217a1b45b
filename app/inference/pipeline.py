"""A request's way from its words to its answer, whatever door it came in by: decode → wait → infer → encode."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from app.inference.context import RequestContext
from app.inference.lifecycle import Lifecycle
from app.inference.service import InferenceService
from app.inference.shadowing import ShadowTraffic
from app.observability.metrics import Observer, RequestRecord
from frameworks.errors import DeadlineExceeded
from frameworks.generation.types import Generation
from frameworks.manager import MLFrameworkManager
from frameworks.models.version import VersionNotLoaded
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.text.tokens import TokenAnswer
from frameworks.types import Answer, ModelSpec

FindSpec = Callable[[str, str | None, Callable[[], float | None]], ModelSpec]
"""RequestContext.find_spec: model, version (None: the request names none) and how to read the request's `timeout_ms`.

The timeout is read only if the version has to be loaded first: the request waits no longer than that.
"""


def no_timeout_ms() -> None:
    """The `read_timeout_ms` of a request that names no timeout."""


Encoded = TypeVar("Encoded")


class DecodedRequest(Protocol):
    """A question, for one model, whose `spec` it was read by. `stream`: answered piece by piece.

    `timeout_ms` None: the caller named no deadline.
    """

    @property
    def request(self) -> Any: ...

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def priority(self) -> int: ...

    @property
    def timeout_ms(self) -> float | None: ...

    @property
    def stream(self) -> bool: ...


Question = TypeVar("Question", bound=DecodedRequest)


class Caller(Protocol):
    """Who waits for an answer. Its going away cancels the task that works for it, between `watch` and `unwatch`."""

    def watch(self) -> None: ...

    async def unwatch(self) -> None:
        """Raises ClientGone where it went away."""
        ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """`requests`: of the whole server. `default_timeout_ms`: of a request that names no deadline."""

    requests: RequestLimit
    max_body_bytes: int
    default_timeout_ms: int | None


class Pipeline:
    """Owned by the event loop."""

    def __init__(
        self,
        manager: MLFrameworkManager,
        service: InferenceService,
        shadowing: ShadowTraffic,
        observer: Observer,
        lifecycle: Lifecycle,
        bounds: Bounds,
    ) -> None:
        self.manager = manager
        self.observer = observer
        self.lifecycle = lifecycle
        self.bounds = bounds
        self._service = service
        self._shadowing = shadowing
        # One thread: several would only fight for the interpreter's lock.
        self._long_work = ThreadPoolExecutor(1, thread_name_prefix="long-bodies")

    def close(self) -> None:
        """Ends the thread of long bodies; what waits for it is dropped."""
        self._long_work.shutdown(wait=False, cancel_futures=True)

    async def enter(
        self, door: RequestContext, decode: Callable[[FindSpec], Question], is_long: bool, caller: Caller
    ) -> Question:
        """Reads the question by the version that is to answer it, and makes it that version's visitor.

        `is_long`: to read it holds the loop for about a millisecond, so it is read in a thread. Raises what `decode`
        does, DeadlineExceeded, what keeps the version from answering, and what a load that it waits for ends with.
        """
        decoded = await self._decoded(door, decode, is_long)
        while decoded is None or not door.enter(decoded.spec):
            # Its version is not loaded, or has left since: a rare thing, and then a long one.
            if decoded is None:
                await self._wait_for(door, caller)
            decoded = await self._decoded(door, decode, is_long)
        return decoded

    async def infer(self, door: RequestContext, decoded: DecodedRequest, caller: Caller) -> Answer | TokenAnswer:
        """The answer to a question that has entered. Raises as InferenceService.infer."""
        record, version = door.record, door.version
        assert version is not None
        left_s = self._left_s(decoded.timeout_ms, record)
        caller.watch()
        try:
            answer = await self._service.infer(
                version, decoded.request, record.timings, door.permit, decoded.priority, left_s
            )
        finally:
            await caller.unwatch()
        if door.shadowed is not None:
            self._shadowing.copy(door.shadowed, decoded.request, answer)
        return answer

    async def generate(self, door: RequestContext, decoded: DecodedRequest) -> Generation:
        """The answer in the making to a GenerateRequest that has entered: the caller closes it in any case, and watches
        who it is for. Raises as InferenceService.generate.
        """
        record, version = door.record, door.version
        assert version is not None
        left_s = self._left_s(decoded.timeout_ms, record)
        return await self._service.generate(
            version, decoded.request, record.timings, door.permit, decoded.priority, left_s, decoded.stream
        )

    async def encode(self, door: RequestContext, write: Callable[[], Encoded], is_long: bool) -> Encoded:
        """What `write` gives, in a thread where it is long. The model has done its part then: a caller that reads
        slowly does not keep it from leaving.
        """
        started_s = time.perf_counter()
        if is_long:
            encoded = await asyncio.get_running_loop().run_in_executor(self._long_work, write)
        else:
            encoded = write()
        door.record.timings.encode_s += time.perf_counter() - started_s
        door.permit.release_model()
        return encoded

    async def _decoded(
        self, door: RequestContext, decode: Callable[[FindSpec], Question], is_long: bool
    ) -> Question | None:
        """None where the version that is to answer has to be loaded first."""
        started_s = time.perf_counter()
        try:
            if not is_long:
                return decode(door.find_spec)
            # In a thread: the interpreter's lock is free between the library's calls, and the loop goes on.
            return await asyncio.get_running_loop().run_in_executor(self._long_work, decode, door.find_spec)
        except VersionNotLoaded as error:
            door.not_loaded = error.version
            return None
        finally:
            door.record.timings.decode_s += time.perf_counter() - started_s

    async def _wait_for(self, door: RequestContext, caller: Caller) -> None:
        """Until the version is loaded, or another one may answer instead. Raises DeadlineExceeded, ClientGone, and what
        the load ends with.
        """
        version, record = door.not_loaded, door.record
        assert version is not None
        door.permit.queue(version.model.requests)
        left_s = self._left_s(door.timeout_ms, record)
        started_s = time.perf_counter()
        caller.watch()
        try:
            async with asyncio.timeout(None if left_s is None else max(0.0, left_s)):
                await self.manager.wait_for(version, door.permit)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{version} was not loaded within timeout_ms; allow more time, or load it before it is asked for"
            ) from None
        finally:
            record.timings.queue_s += time.perf_counter() - started_s
            await caller.unwatch()
        # It is asked again which version answers, unless this one has waited for the request.
        door.version = version if version.is_held_by(door.permit) else None

    def new_permit(self) -> Permit:
        """A place among the server's requests. Raises Draining, Overloaded."""
        self.lifecycle.check_accepting()
        return Permit(self.bounds.requests)

    def _left_s(self, timeout_ms: float | None, record: RequestRecord) -> float | None:
        """Seconds until the request's deadline, counted from its first byte; None if it has none."""
        timeout_ms = timeout_ms or self.bounds.default_timeout_ms
        return None if timeout_ms is None else timeout_ms / 1000 - (time.perf_counter() - record.started_s)
