"""Keep garbage collections short: while one scans memory, it holds the interpreter's lock and blocks the event loop."""

import gc
import time
from typing import Any

# One iteration of the event loop creates and drops about a thousand objects: collect less often than the default. The
# second collection looks at no more than six times as many, which takes about 10 ms.
_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, _MIDDLE_COLLECTIONS = 10_000, 5, 10
# A full collection that takes longer excludes its survivors from later ones.
_LONG_S = 0.005


class _Collections:
    """The full collections of this process. `has_frozen`: survivors of one were excluded from later ones."""

    def __init__(self) -> None:
        self.has_frozen = False
        self._started_s = 0.0

    def observe(self, phase: str, info: dict[str, Any]) -> None:
        """Called by the interpreter at the start and the end of each collection."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self._started_s = time.perf_counter()
        elif time.perf_counter() - self._started_s > _LONG_S:
            # All survivors are in use. Thousands of connections have 26 objects each, which last as long as they do.
            gc.freeze()
            self.has_frozen = True


_collections = _Collections()


def shorten_collections() -> None:
    """Set the thresholds of collections, and let a long one exclude its survivors. Called once in a server."""
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_COLLECTIONS, _MIDDLE_COLLECTIONS)
    gc.callbacks.append(_collections.observe)


def freeze() -> None:
    """Collect, and exclude all other objects from later collections: those of a framework last until the end."""
    gc.collect()
    gc.freeze()


def pause_collections() -> None:
    """Start no collection until `exclude_imports`: the objects that imports create last until the end."""
    gc.disable()


def exclude_imports() -> None:
    """Exclude all objects from later collections, without a collection, and let later ones start again.

    A collection after the imports of a framework takes 0.1 s to find 1 MB.
    """
    gc.freeze()
    gc.enable()


def collect() -> None:
    """Collect the cycles among all objects but those of `freeze`, if no collection was long; else among all."""
    if _collections.has_frozen:
        _collections.has_frozen = False
        gc.unfreeze()
    gc.collect()
