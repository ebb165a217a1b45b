"""Draw progress bars and their numbers, for all commands."""

_FULL, _EMPTY = "█", "░"
BAR_CHARACTERS = 24
ERASE_LINE = "\r\x1b[K"


def in_place(text: str) -> str:
    """Return what writes a line over the last one, which may be longer."""
    return f"\r{text}\x1b[K"


def draw_bar(done: float, total: float, characters: int = BAR_CHARACTERS, *, is_full: bool = False) -> str:
    """Return a bar. `is_full`: of a `total` of 0, which otherwise is unknown."""
    share = min(1.0, done / total) if total else float(is_full)
    full = int(characters * share)
    return _FULL * full + _EMPTY * (characters - full)


def format_seconds(seconds: float) -> str:
    """Return a duration such as 45s, 3m20s or 2h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"
