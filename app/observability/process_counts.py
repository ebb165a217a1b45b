"""The counts of one process of the server beside those of requests."""

from dataclasses import dataclass, field
from operator import add

from app.observability.tallies import Histogram
from memory.tensor_pool import PoolStats


@dataclass(slots=True)
class ProcessCounts:
    """Counts since the start of a process.

    `connections_closed`: by reason. `key_reloads`, `tls_reloads`: by outcome. `tls_expires_s`: Unix time; None without
    TLS. `tensor_pool`: by device. `shared_leased_bytes`, `shared_resident_bytes`: of memory shared with engine
    processes.
    """

    loop_lag_seconds: Histogram = field(default_factory=Histogram)
    integrity_failures: int = 0
    log_lines_dropped: int = 0
    connections_closed: dict[str, int] = field(default_factory=dict)
    key_reloads: dict[str, int] = field(default_factory=dict)
    tls_reloads: dict[str, int] = field(default_factory=dict)
    tls_expires_s: float | None = None
    tensor_pool: dict[str, PoolStats] = field(default_factory=dict)
    shared_leased_bytes: int = 0
    shared_resident_bytes: int = 0
    traces_dropped: int = 0

    def merge(self, other: "ProcessCounts") -> None:
        """Add the counts of another process of the same server."""
        self.loop_lag_seconds.merge(other.loop_lag_seconds)
        self.integrity_failures += other.integrity_failures
        self.log_lines_dropped += other.log_lines_dropped
        self.traces_dropped += other.traces_dropped
        for reason, count in other.connections_closed.items():
            self.connections_closed[reason] = self.connections_closed.get(reason, 0) + count
        # Each process reads the same files.
        for own, others in ((self.key_reloads, other.key_reloads), (self.tls_reloads, other.tls_reloads)):
            for outcome, count in others.items():
                own[outcome] = max(own.get(outcome, 0), count)
        # A process that could not read the new files has the certificate that expires first.
        expiries = [each for each in (self.tls_expires_s, other.tls_expires_s) if each is not None]
        self.tls_expires_s = min(expiries, default=None)
        for device, stats in other.tensor_pool.items():
            before = self.tensor_pool.get(device)
            self.tensor_pool[device] = stats if before is None else PoolStats(*map(add, before, stats))
        self.shared_leased_bytes += other.shared_leased_bytes
        self.shared_resident_bytes += other.shared_resident_bytes

    def drop_gauges(self) -> None:
        """Drop the values that an ended process has no more."""
        self.tls_expires_s = None
        self.shared_leased_bytes = self.shared_resident_bytes = 0
        for device, stats in self.tensor_pool.items():
            self.tensor_pool[device] = stats._replace(leased_bytes=0, idle_bytes=0, leases=0)
