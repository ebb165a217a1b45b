"""Hold the state of a model's downloads: those that run, and their counts."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frameworks.sources.store import Progress


@dataclass(frozen=True, slots=True)
class Download:
    """A download that runs. `progress`: written by its thread. `cancel`: ends it; its load fails with Draining."""

    progress: "Progress"
    cancel: Callable[[], object]


@dataclass(slots=True)
class ModelDownloads:
    """Owned by the event loop. The keys are versions."""

    running: dict[str, Download] = field(default_factory=dict)
    received_bytes: Counter[str] = field(default_factory=Counter)
    """Received since the start of the server, also by downloads that failed."""

    def cancel(self, version: str | None) -> None:
        """End the downloads of a version; None: of all."""
        for name, download in list(self.running.items()):
            if version in (None, name):
                download.cancel()
