"""Contracts of protocols and transports with the pipeline: two steps of decoding, and streams of answers."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from app.inference.predictions import PredictionStream
from app.inference.unnamed_model import UnnamedModel
from frameworks.generation.types import Generation
from frameworks.types import ModelSpec


class DecodedRequest(Protocol):
    """A request for one model, decoded by the `spec` of one of its versions. `stream`: the response comes in pieces.

    `spec` None: an operation answers the request, with runs of models or without. `timeout_ms` None: the request names
    no deadline.
    """

    @property
    def request(self) -> Any: ...

    @property
    def spec(self) -> ModelSpec | None: ...

    @property
    def priority(self) -> int: ...

    @property
    def timeout_ms(self) -> float | None: ...

    @property
    def stream(self) -> bool: ...


def no_timeout_ms() -> None:
    """The `read_timeout_ms` of a request that names no timeout."""


class NamedRequest(NamedTuple):
    """A body of which only the names are read: the first of two steps of decoding.

    `model` None: an operation answers the request, and `decode` gets no spec. `version` None: the request names none.
    `decode(spec)`: the second step. It returns a DecodedRequest by the spec of the version that answers, and raises
    InvalidInput and UnknownField.
    `read_timeout_ms`: called only if the version has to be loaded first. The request waits no longer than that.
    """

    model: str | UnnamedModel | None
    version: str | None
    decode: Callable[[Any], Any]
    read_timeout_ms: Callable[[], float | None] = no_timeout_ms


Pieces = Generation | PredictionStream
"""The pieces of a streamed response: of text, or predictions."""


class TextStream(Protocol):
    """A response that is sent while it is generated."""

    async def send_pieces(self, generation: Pieces) -> None:
        """Send all pieces. Raises what fails before the first one, which an ordinary response can still report."""
        ...

    async def finish(self) -> None:
        """Send the end of the response, after the model's part is done."""
        ...
