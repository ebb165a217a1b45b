"""Ended requests for tests of traces."""

from app.observability.traces.traces import EndedRequest, RemoteParent, RequestTrace
from frameworks.core.timings import Timings


def ended(
    status: int = 200,
    code: str = "",
    parent: RemoteParent | None = None,
    timings: Timings | None = None,
    is_authenticated: bool = False,
    method: str = "POST",
) -> EndedRequest:
    """Return a request of a second whose key was checked in a tenth of it."""
    trace = RequestTrace(7 if parent is None else parent.trace_id, parent, is_sampled=True)
    trace.begun_s = 100.1
    timings = timings or Timings(0.1, 0.2, 0.3, 0.1, batch_rows=8)
    return EndedRequest(
        trace, "id", method, "/infer", "m", "1", "team", status, code, timings, 100.0, 1.0, 10**18, is_authenticated
    )
