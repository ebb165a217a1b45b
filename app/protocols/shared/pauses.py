"""Let the event loop run while a thread does long work in Python."""

import time

# The interpreter passes its lock on after 5 ms, and the loop would wait as long after each of its own pauses.
_PAUSE_S = 50e-6


def pause() -> None:
    """Release the interpreter's lock for a moment. Call it after about a millisecond of work, in a thread only."""
    time.sleep(_PAUSE_S)
