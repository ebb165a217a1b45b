"""Send an exact share of a model's requests to another version."""

from dataclasses import dataclass


@dataclass(slots=True)
class Share:
    """A percentage of the requests, spread evenly: exact to one request in every 100."""

    version: str
    percent: float
    _due: float = 0.0

    def takes_next(self) -> bool:
        """Count the next request, and return whether it belongs to the share."""
        self._due += self.percent
        if self._due < 100.0:
            return False
        self._due -= 100.0
        return True
