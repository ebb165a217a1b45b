"""What a protocol is to the endpoint: how its questions are read (step 1) and its answers written (step 5)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from frameworks.generation.types import Piece, Usage
from frameworks.types import ModelSpec


@dataclass(frozen=True, slots=True)
class Target:
    """The model that a path names; None where the body has to."""

    model: str | None = None
    version: str | None = None


class AnswerContext(NamedTuple):
    """What an answer says besides the model's own words. `created_s`: Unix time of the question, whole seconds."""

    model: str
    version: str
    request_id: str
    latency_ms: float
    created_s: int


ErrorWriter = Callable[[int, str, str, str], bytes]
"""WireFormat.error_body: status, code, message and request id → the body."""


class Decoded(Protocol):
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
    def timeout_ms(self) -> int | None: ...

    @property
    def stream(self) -> bool: ...


class StreamWriter(Protocol):
    """One streamed answer. Each method gives the payloads of server-sent events, without `data:` and line ends."""

    def begin(self) -> list[bytes]: ...

    def piece(self, piece: Piece) -> list[bytes]: ...

    def end(self, usage: Usage, latency_ms: float) -> list[bytes]:
        """The last ones, `[DONE]` among them."""
        ...

    def error(self, status: int, code: str, message: str) -> list[bytes]:
        """In the place of `end`."""
        ...


class WireFormat(Protocol):
    """One protocol's questions of one kind. Holds no state: any thread may call it."""

    def decode(self, body: bytes, target: Target, find_spec: Callable[[str, str | None], ModelSpec]) -> Decoded:
        """`find_spec(name, version)` is asked as soon as the name is known, before the rest is read, and raises what
        keeps the model from answering; ModelAbsent is given the request's `timeout_ms` where it is known.

        Raises InvalidJson, InvalidInput, UnknownField.
        """
        ...

    def encode(self, decoded: Any, answer: Any, context: AnswerContext) -> bytes:
        """The body of a 200."""
        ...

    def stream_writer(self, decoded: Any, context: AnswerContext) -> StreamWriter: ...

    def error_body(self, status: int, code: str, message: str, request_id: str) -> bytes:
        """The body of any other answer; `code` is the contract's."""
        ...
