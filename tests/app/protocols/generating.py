"""An endpoint whose model generates a scripted text. Every other part is real."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from app.http.endpoint import Endpoint
from app.http.origins import OriginPolicy, OriginRules
from app.inference.bounds import Bounds
from app.inference.pipeline import Pipeline
from app.observability.metrics import Observer
from app.protocols.native.routes import ROUTES
from app.protocols.shared.routes import Route, RouteTable
from frameworks.generation.types import Choice, GenerateAnswer, TextDelta, Usage
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.types import ModelSpec
from tests.app.protocols.native.specs import WRITER

GONE = {"type": "http.disconnect"}
Script = TextDelta | Exception | asyncio.Event


class ScriptedGeneration:
    """Follow a script: return its pieces, raise its exceptions, wait for its events. Then end."""

    deadline_s: float | None = None

    def __init__(self, *script: Script) -> None:
        self._script = list(script)
        self.usage = Usage(prompt_tokens=3, tokens_generated=2)
        self.is_closed = False

    def __aiter__(self) -> "ScriptedGeneration":
        return self

    async def __anext__(self) -> TextDelta:
        while self._script:
            item = self._script.pop(0)
            if isinstance(item, TextDelta):
                return item
            if isinstance(item, Exception):
                raise item
            await item.wait()
        raise StopAsyncIteration

    def ready(self) -> list[TextDelta]:
        pieces: list[TextDelta] = []
        while self._script and isinstance(piece := self._script[0], TextDelta):
            pieces.append(piece)
            del self._script[0]
        return pieces

    async def collect(self) -> GenerateAnswer:
        text = "".join([piece.text async for piece in self])
        return GenerateAnswer([Choice(text, "stop")], self.usage)

    def close(self) -> None:
        self.is_closed = True


class Endless(ScriptedGeneration):
    """Generate pieces until `error` is set, then raise it."""

    error: Exception | None = None

    async def __anext__(self) -> TextDelta:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return TextDelta(0, "x" * 1000)


class Version:
    """A loaded version. `references`: the permits of the requests that use it."""

    version = "1"

    def __init__(self) -> None:
        self.references: set[Permit] = set()
        limit = RequestLimit('model "writer"', None, None)
        self.model = SimpleNamespace(name="writer", requests=limit, entry=SimpleNamespace(cache=False))

    def spec_for(self, permit: Permit) -> ModelSpec:
        return WRITER

    def acquire(self, permit: Permit, spec: ModelSpec) -> bool:
        self.references.add(permit)
        permit.hold(self)
        return True

    def release(self, permit: Permit) -> None:
        self.references.discard(permit)


class EndpointHarness:
    """The endpoint, and the state that tests inspect."""

    def __init__(
        self, generation: ScriptedGeneration, refusal: Exception | None = None, routes: Sequence[Route] = ROUTES
    ) -> None:
        """`refusal`: raised by `generate`."""
        self.generation = generation
        self.refusal = refusal
        self.generate_requests: list[Any] = []
        self.version = Version()
        self.observer = Observer("none", 1000)
        self.requests = RequestLimit("the server", 10, None)
        slot = SimpleNamespace(name="writer", default_version=self.version, active=self.version, shadow=None)
        slot.canary, slot.serves_latest = None, True
        slot.requests = self.version.model.requests
        pipeline = Pipeline(
            cast(Any, SimpleNamespace(slot=lambda name: slot, slots_by_name={"writer": slot})),
            cast(Any, self),
            cast(Any, None),
            self.observer,
            cast(Any, SimpleNamespace(is_draining=False)),
            Bounds(self.requests, 10_000, None),
        )
        self.app = Endpoint(pipeline, RouteTable(routes), cast(Any, None), OriginPolicy(OriginRules()))

    async def generate(self, context: Any, request: object, left_s: object, in_pieces: bool) -> ScriptedGeneration:
        """Start the generation, as InferenceService does."""
        assert context.model_version is self.version
        self.generate_requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        return self.generation

    def check_completed(self, status: int) -> None:
        """Check that one request was counted, with this status, and that it holds no resource."""
        assert self.observer.requests == {("writer", "1", status, ""): 1}
        assert self.observer.inflight == 0
        assert self.requests.inflight == 0
        assert not self.version.references
        assert self.generation.is_closed or self.refusal is not None
        assert not asyncio.all_tasks() - {asyncio.current_task()}


class Caller:
    """One HTTP request to the harness, as ASGI messages."""

    def __init__(self, harness: EndpointHarness, **body: object) -> None:
        self._harness = harness
        self._body = json.dumps({"prompt": "a"} | body).encode()
        self._is_body_sent = False
        self._is_disconnected = asyncio.Event()
        self.messages: list[Any] = []
        self.on_send: Callable[[], Awaitable[None]] | None = None
        """Called before each message is recorded."""

    async def send_request(self) -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/models/writer/infer",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"x-request-id", b"mine")],
        }
        await self._harness.app(scope, self._receive, self._send)

    def disconnect(self) -> None:
        self._is_disconnected.set()

    @property
    def status(self) -> int:
        status: int = self.messages[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages[1:]]

    @property
    def is_at_end(self) -> bool:
        return len(self.messages) > 1 and not self.messages[-1].get("more_body", False)

    @property
    def events(self) -> list[Any]:
        return events_of(b"".join(self.bodies))

    async def _receive(self) -> Any:
        if not self._is_body_sent:
            self._is_body_sent = True
            return {"type": "http.request", "body": self._body}
        await self._is_disconnected.wait()
        return GONE

    async def _send(self, message: Any) -> None:
        if self.on_send is not None:
            await self.on_send()
        self.messages.append(message)


def events_of(body: bytes) -> list[Any]:
    """Return the data of each event of a stream, parsed except [DONE]. Comments are left out."""
    *events, rest = body.decode().split("\n\n")
    assert rest == "", rest
    events = [event for event in events if not event.startswith(":")]
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event[6:] if event == "data: [DONE]" else json.loads(event[6:]) for event in events]
