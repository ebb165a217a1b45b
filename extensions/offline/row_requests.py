"""Define the requests that a window of rows becomes."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol


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
        """Yield requests for all rows, those of the longest rows first."""
        ...

    def body(self, positions: list[int]) -> bytes:
        """Return the body for these rows. A single text is sent as a string. Raises UnreadableRow."""
        ...
