"""Count in one process of the server."""

from dataclasses import dataclass

from app.auth.key_store import KeyStore
from app.http.listener.clocks import Connections
from app.observability.integrity import IntegrityMonitor
from app.observability.logs.logs import lost_lines
from app.observability.loop_lag import LoopLagMonitor
from app.observability.process_counts import ProcessCounts
from app.observability.traces.traces import Tracer
from memory.shared_arena import shared_memory_in_use
from memory.tensor_pool import TensorPool


@dataclass(frozen=True, slots=True)
class ProcessParts:
    """The parts of a process that count, beside those that run requests."""

    loop_lag: LoopLagMonitor
    integrity: IntegrityMonitor
    tensor_pool: TensorPool
    connections: Connections
    keys: KeyStore
    tracer: Tracer | None = None

    def counts(self) -> ProcessCounts:
        """Return the counts now. They share dictionaries with the parts, which change them later."""
        tls = self.connections.tls
        memory = shared_memory_in_use()
        return ProcessCounts(
            self.loop_lag.lag_seconds,
            self.integrity.failures,
            lost_lines(),
            self.connections.closed,
            {outcome: self.keys.reloads[outcome] for outcome in ("loaded", "failed")},
            {} if tls is None else tls.reloads,
            None if tls is None else tls.material.expires_s,
            self.tensor_pool.stats(),
            memory.leased_bytes,
            memory.resident_bytes,
            0 if self.tracer is None else self.tracer.ended.dropped,
        )
