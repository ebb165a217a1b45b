"""Count the worker processes of the server."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class WorkerCounts:
    """`running`: workers that accept connections; 1 where the server is one process. `restarts`: by reason."""

    running: int = 1
    restarts: Counter[str] = field(default_factory=Counter)
