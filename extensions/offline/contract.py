"""The contract between the parts of a run: its model, the requests for its rows, and the errors that end it early."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from frameworks.tasks.types import TaskAnswer
from frameworks.types import ClassifyAnswer, EmbedAnswer, MultiVectorAnswer, SparseAnswer, Value, Vectors


class RunFailed(Exception):
    """The run cannot go on now. The same command resumes it when the cause is gone."""


class WrongCommand(Exception):
    """The command does not fit the model, the input or an earlier run; nothing was changed."""


class UnreadableRow(Exception):
    """A row cannot be read; the message has the reason."""


class RequestRefused(Exception):
    """The model refuses the rows of one request; the message has the reason."""


class RowRequest(NamedTuple):
    """Rows of a window that one request asks for. `positions`: of the rows in the window."""

    positions: list[int]
    body: bytes


class PreparedRows(Protocol):
    """The rows of a window that can be sent. Its methods may read files, so they run on a thread."""

    @property
    def bad(self) -> list[tuple[int, str]]:
        """Position and reason of the rows that cannot be sent; complete when `requests` has ended."""
        ...

    def requests(self, max_rows: int) -> Iterator[RowRequest]:
        """Yield requests for all rows: texts and tensors from the longest ones on, others in their order."""
        ...

    def body(self, positions: list[int]) -> bytes:
        """Return the body for these rows. A single text is sent as a string. Raises UnreadableRow."""
        ...


ANY_SIDE = 64
"""Pixels of the sides of an example image, for a model that prepares images of any size."""
MEDIA = ("image", "audio", "video")
"""The fields of a request for files."""
Shape = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class RunModelDescription:
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
    """Height and width of a prepared image, ANY_SIDE where they depend on the image; None for a model that reads no
    images.
    """
    reads: tuple[str, ...] = ()
    """The fields of one input of a task of transformers' pipelines; empty for other models."""
    vectors: Vectors = "dense"
    """Those of a model that embeds."""
    max_images: int = 0
    """Images of one conversation; 0 for a model that reads none in conversations."""

    @property
    def media(self) -> str | None:
        """The field of a request for files; None for a model that reads none."""
        if self.image_size is not None:
            return "image"
        return next((field for field in MEDIA if field in self.reads), None)


class Generated(NamedTuple):
    """The continuation of one prompt."""

    text: str
    finish_reason: str
    tokens_generated: int


RowAnswer = EmbedAnswer | MultiVectorAnswer | SparseAnswer | ClassifyAnswer | TaskAnswer | Generated | dict[str, Value]
"""The answer to a request of a run. Tensors: output name → array, or list with a value for each row."""


class RunModel(Protocol):
    """A model that answers bodies of the native API. Owned by the event loop."""

    concurrency: int
    """The number of requests that are sent at the same time."""

    rows_per_request: int

    @property
    def description(self) -> RunModelDescription: ...

    async def answer(self, body: bytes) -> RowAnswer:
        """Answer the body of /infer. Raises RequestRefused for its rows, WrongCommand and RunFailed."""
        ...
