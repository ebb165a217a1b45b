"""One line of the bench's table, and the table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """`figure` with its unit; `target` as the project set it itself, `-` where there is none."""

    what: str
    figure: str
    target: str = "-"
    compared: str = "-"


def percent(share: float) -> str:
    """0.934 → `93 %`."""
    return f"{share * 100:.0f} %"


def print_table(rows: list[Row]) -> None:
    """As Markdown, for the README."""
    print("| what | measured | target | compared with |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row.what} | {row.figure} | {row.target} | {row.compared} |")
