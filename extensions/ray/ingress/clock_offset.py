"""Estimate the offset between the clocks of two machines, which start at different times and drift."""

from collections import deque

_SAMPLES = 8


class PeerClock:
    """Learns the difference from pings: the one with the shortest round trip of the last ones is the most exact."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self.ahead_s = 0.0
        """Seconds by which the clock of the peer is ahead of this one."""

    def observe(self, sent_s: float, peer_s: float, received_s: float) -> None:
        """Note an answer. `sent_s`, `received_s`: by the clock here; `peer_s`: of the answer, by that of the peer."""
        round_trip_s = max(0.0, received_s - sent_s)
        self._samples.append((round_trip_s, peer_s - (sent_s + received_s) / 2))
        self.ahead_s = min(self._samples)[1]
