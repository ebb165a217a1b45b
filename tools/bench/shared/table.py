"""Format the table of the benchmarks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """`figure` with its unit; `target` as the project set it, or `-`."""

    what: str
    figure: str
    target: str = "-"
    compared: str = "-"


def percent(share: float) -> str:
    """Return 0.934 as `93 %`."""
    return f"{share * 100:.0f} %"


def print_table(rows: list[Row]) -> None:
    """Print Markdown, for docs/benchmarks.md."""
    print("\n".join(table_lines(rows)))


def table_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Return the lines of a Markdown table."""
    yield from ("| what | measured | target | compared with |", "|---|---|---|---|")
    for row in rows:
        yield f"| {row.what} | {row.figure} | {row.target} | {row.compared} |"
