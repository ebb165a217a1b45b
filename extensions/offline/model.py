"""Define how a run reaches its model: loaded in this process, or served by another one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from frameworks.types import ClassifyAnswer, EmbedAnswer, Value

Shape = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model as a run needs it. `inputs` and `outputs`: name → shape, None where it declares none.

    `identity`: plain JSON values; a run is resumed only by the model with the same ones.
    """

    name: str
    task: str
    inputs: Mapping[str, Shape]
    outputs: Mapping[str, Shape]
    identity: dict[str, Any]
    required: frozenset[str] = field(default_factory=frozenset)
    """The inputs without which the model does not run; empty where the server does not say."""
    image_size: tuple[int, int] | None = None
    """Height and width of a prepared image; None for a model that reads no images."""


class Generated(NamedTuple):
    """The continuation of one prompt."""

    text: str
    finish_reason: str
    tokens_generated: int


RowAnswer = EmbedAnswer | ClassifyAnswer | Generated | dict[str, Value]
"""The answer to a request of a run. Tensors: output name → array, or list with a value for each row."""


class RunModel(Protocol):
    """A model that answers bodies of the native API. Owned by the event loop."""

    concurrency: int
    """The number of requests that are sent at the same time."""

    rows_per_request: int

    @property
    def description(self) -> ModelDescription: ...

    async def answer(self, body: bytes) -> RowAnswer:
        """Answer the body of /infer. Raises RequestRefused for its rows, WrongCommand and RunFailed."""
        ...
