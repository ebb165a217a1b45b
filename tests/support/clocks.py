"""A clock that the test sets."""


class Clock:
    """Seconds that only the test advances."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s
