"""Draw lines and bars as SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 900, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 8, 26
_MAX_BARS = 120
_TICKS = 4


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one line, with ascending x."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def lines(drawn: Sequence[Line], end_x: float, unit_x: str) -> str:
    """Return a plot with both axes from zero. `end_x`: end of the x axis, above zero."""
    end_y = nice_end(max((y for line in drawn for y in line.y), default=0.0))
    parts = [_axis_y(end_y)]
    for step in range(_TICKS + 1):
        value = end_x * step / _TICKS
        parts.append(_label_x(_place(value / end_x), f"{value:.3g} {unit_x}"))
    for place, line in enumerate(drawn):
        points = [(_place(x / end_x), _level(y / end_y)) for x, y in zip(line.x, line.y, strict=True)]
        if len(points) == 1:
            # A line of one point has no length.
            points.append((points[0][0] + 4, points[0][1]))
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="l{place % 3}" points="{path}"/>')
    return _svg(parts)


def bars(buckets: Sequence[tuple[float, float, int]]) -> str:
    """Return a histogram with a logarithmic x axis. `buckets`: ascending lower and upper bound above 0, count."""
    if not buckets:
        return _svg([])
    low, high = math.log10(buckets[0][0]), math.log10(buckets[-1][1])
    width = max((high - low) / _MAX_BARS, 1e-9)
    counts = [0] * (_MAX_BARS + 1)
    for lower, upper, count in buckets:
        middle = (math.log10(lower) + math.log10(upper)) / 2
        counts[min(_MAX_BARS, int((middle - low) / width))] += count
    end_y = nice_end(max(counts))
    parts = [_axis_y(end_y)]
    for step in range(_TICKS + 1):
        part = step / _TICKS
        parts.append(_label_x(_place(part), f"{10 ** (low + (high - low) * part):.3g}"))
    bar = (_WIDTH - _LEFT - _RIGHT) / (_MAX_BARS + 1)
    for place, count in enumerate(counts):
        if count:
            top = _level(count / end_y)
            parts.append(
                f'<rect class="bar" x="{_LEFT + place * bar:.1f}" y="{top:.1f}" width="{max(1.0, bar - 1):.1f}" '
                f'height="{_level(0) - top:.1f}"/>'
            )
    return _svg(parts)


def nice_end(largest: float) -> float:
    """Return the end of an axis: the next of 1, 2, 2.5, 5 and 10 times a power of ten."""
    if not largest > 0 or not math.isfinite(largest):
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest))
    return next((step * power for step in (1, 2, 2.5, 5) if step * power >= largest), 10 * power)


def _axis_y(end: float) -> str:
    parts = []
    for step in range(_TICKS + 1):
        value = end * step / _TICKS
        y = _level(step / _TICKS)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    return "".join(parts)


def _label_x(x: float, text: str) -> str:
    anchor = "end" if x > _WIDTH - 60 else "middle"
    return f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{text}</text>'


def _place(part: float) -> float:
    return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)


def _level(part: float) -> float:
    return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)


def _svg(parts: list[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'
