"""Draw lines and bars as HTML: shapes in SVG that fills its box, and labels that keep their size."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from extensions.load_test.results.histogram import RELATIVE_ERROR

_WIDTH, _HEIGHT = 1000, 200
_MAX_BARS = 100
# Width of a bucket on a logarithmic axis.
_BUCKET = 2 * math.log10(1 + RELATIVE_ERROR)
_MAX_STEPS = 4
_UNITS = ((3600, "h"), (60, "min"), (1, "s"))

STYLE = """
.plot { display: grid; grid-template: 11rem 1.4rem / 3.5rem 1fr; padding: .5rem 1rem 0 0; font-size: .75rem;
  color: var(--soft); font-variant-numeric: tabular-nums }
.plot svg { width: 100%; height: 100%; display: block; overflow: visible }
.plot svg * { vector-effect: non-scaling-stroke }
.ys, .xs { position: relative } .xs { grid-column: 2 } .plot span { position: absolute; white-space: nowrap }
.ys span { right: .5rem; transform: translateY(50%) } .xs span { top: .25rem; transform: translateX(-50%) }
.grid { stroke: var(--edge); stroke-width: 1 } .l0, .l1, .l2 { fill: none; stroke-width: 1.8; stroke: var(--a) }
.l1 { stroke: var(--b) } .l2 { stroke: var(--c); stroke-dasharray: 5 3 } .bar { fill: var(--a) }
"""
"""Needs the colours --soft, --edge, --a, --b and --c."""


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one line, with ascending x."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def lines(title: str, drawn: Sequence[Line], end_s: float) -> str:
    """Return a plot over time, both axes from zero. `end_s`: end of the time axis, above zero."""
    ys = ticks(max((y for line in drawn for y in line.y), default=0.0))
    parts = [_grid(len(ys))]
    for index, line in enumerate(drawn):
        points = [(x / end_s * _WIDTH, _level(y / ys[-1])) for x, y in zip(line.x, line.y, strict=True)]
        if len(points) == 1:
            # A line of one point has no length.
            points.append((points[0][0] + 4, points[0][1]))
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="l{index % 3}" points="{path}"/>')
    unit_s, unit = next(each for each in _UNITS if end_s >= each[0] * 2 or each[0] == 1)
    xs = [value for value in ticks(end_s / unit_s) if value * unit_s <= end_s * 1.001]
    labels = [(value * unit_s / end_s, f"{_number(value)} {unit}") for value in xs]
    return _plot(title, parts, ys, labels)


def bars(title: str, buckets: Sequence[tuple[float, float, int]]) -> str:
    """Return a histogram with a logarithmic x axis. `buckets`: those of a Histogram."""
    if not buckets:
        return _plot(title, [_grid(2)], [0, 1], [])
    low, high = math.log10(buckets[0][0]), math.log10(buckets[-1][1])
    # Each bar has the same number of buckets: bars would differ without a reason otherwise.
    num_buckets = max(1, round((high - low) / _BUCKET))
    in_bar = math.ceil(num_buckets / _MAX_BARS)
    counts = [0] * math.ceil(num_buckets / in_bar)
    for lower, _, count in buckets:
        counts[min(len(counts) - 1, round((math.log10(lower) - low) / _BUCKET) // in_bar)] += count
    ys = ticks(max(counts))
    bar, high = _WIDTH / len(counts), low + _BUCKET * in_bar * len(counts)
    parts = [_grid(len(ys))]
    for index, count in enumerate(counts):
        if count:
            height = count / ys[-1] * _HEIGHT
            parts.append(
                f'<rect class="bar" x="{index * bar:.1f}" y="{_HEIGHT - height:.1f}" width="{bar * 0.9:.1f}" '
                f'height="{height:.1f}"/>'
            )
    labels = [((math.log10(value) - low) / (high - low), _number(value)) for value in log_ticks(low, high)]
    return _plot(title, parts, ys, labels)


def ticks(largest: float) -> list[float]:
    """Return round values from 0 on in equal steps; the last of them is the first that is not below `largest`."""
    if not largest > 0 or not math.isfinite(largest):
        return [0.0, 1.0]
    step = _round_up(largest / _MAX_STEPS)
    return [step * index for index in range(math.ceil(largest / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return at most six round values between two powers of ten; both ends if there are less than two."""
    found: list[float] = []
    choices: list[Callable[[int], list[float]]] = [
        lambda power: [step * 10.0**power for step in (1, 2, 5)],
        lambda power: [10.0**power],
        lambda power: [10.0**power] if power % 2 == 0 else [],
    ]
    for choice in choices:
        powers = range(math.floor(low), math.ceil(high) + 1)
        found = [value for power in powers for value in choice(power) if low <= math.log10(value) <= high]
        if len(found) <= 6:
            break
    return found if len(found) >= 2 else [10**low, 10**high]


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 2.5, 5 and 10 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1, 2, 2.5, 5) if step * power >= value), 10 * power)


def _number(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.10g}"


def _level(part: float) -> float:
    return _HEIGHT * (1 - part)


def _grid(count: int) -> str:
    levels = [_level(index / (count - 1)) for index in range(count)]
    return "".join(f'<line class="grid" x1="0" y1="{y:.1f}" x2="{_WIDTH}" y2="{y:.1f}"/>' for y in levels)


def _plot(title: str, parts: list[str], ys: list[float], labels: Sequence[tuple[float, str]]) -> str:
    """`labels`: position on the x axis from 0 to 1, and text."""
    rows = "".join(f'<span style="bottom:{value / ys[-1]:.1%}">{_number(value)}</span>' for value in ys)
    columns = "".join(f'<span style="left:{part:.1%}">{escape(text)}</span>' for part, text in labels)
    return (
        f'<div class="plot"><div class="ys">{rows}</div>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{escape(title)}">'
        f'{"".join(parts)}</svg><div class="xs">{columns}</div></div>'
    )
