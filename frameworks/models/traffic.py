"""Which of a model's versions answers the next request: an exact share of them goes to a canary."""

from dataclasses import dataclass


@dataclass(slots=True)
class Share:
    """So many percent of the requests, spread evenly: of every 100 in a row never one more or less."""

    version: str
    percent: float
    _due: float = 0.0

    def takes_next(self) -> bool:
        """Whether the next request is one of the share."""
        self._due += self.percent
        if self._due < 100.0:
            return False
        self._due -= 100.0
        return True
