"""Format the table of the benchmarks."""

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
    print("| what | measured | target | compared with |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row.what} | {row.figure} | {row.target} | {row.compared} |")
