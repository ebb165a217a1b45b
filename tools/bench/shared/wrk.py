"""Send closed-loop load with wrk, which is never the bottleneck, by default on a core that the server does not use."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.bench.shared.cores import LOAD_CORES, on_cores
from tools.bench.shared.servers import RunningServer

MISSING = "wrk is not installed (apt-get install wrk, brew install wrk)"

_JSON = {"content-type": "application/json"}
_REQUEST = """
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
{headers}
file:close()
"""
# Each request once: a file of whole requests, each behind its length in 8 digits.
_REQUESTS = """
local file = io.open("{body}", "rb")

function request()
    return file:read(tonumber(file:read(8)))
end
"""
_DONE = """
function done(summary, latency)
    local errors = summary.errors
    io.write(string.format(
        '\\nFIGURES {"requests": %d, "duration_us": %d, "failed": %d, "p50_us": %d, "p99_us": %d, "longest_us": %d}\\n',
        summary.requests, summary.duration,
        errors.connect + errors.read + errors.write + errors.status + errors.timeout,
        latency:percentile(50), latency:percentile(99), latency.max))
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """The figures of one round of load."""

    per_second: float
    p50_ms: float
    p99_ms: float
    longest_ms: float
    cpu_us: float
    """CPU microseconds of the server per request."""


def is_installed() -> bool:
    return shutil.which("wrk") is not None


def press(
    server: RunningServer,
    path: str,
    body: bytes,
    connections: int,
    seconds: int,
    headers: Mapping[str, str] = _JSON,
    cores: frozenset[int] = LOAD_CORES,
) -> Load:
    """Post the body over all connections, each after its last answer. Raises unless every answer is 2xx.

    `cores`: for wrk.
    """
    lines = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items())
    return _press(server, path, _REQUEST.replace("{headers}", lines), body, connections, seconds, cores)


def press_each(server: RunningServer, requests: Iterable[bytes], connections: int, seconds: int) -> Load:
    """Send each whole request once. Raises unless every answer is 2xx; `requests` must last for the time."""
    body = b"".join(b"%08d%b" % (len(request), request) for request in requests)
    return _press(server, "/", _REQUESTS, body, connections, seconds, LOAD_CORES)


def _press(
    server: RunningServer, path: str, script: str, body: bytes, connections: int, seconds: int, cores: frozenset[int]
) -> Load:
    with tempfile.TemporaryDirectory() as folder, on_cores(cores):
        script_file, body_file = Path(folder) / "post.lua", Path(folder) / "body"
        body_file.write_bytes(body)
        script_file.write_text(script.replace("{body}", str(body_file)) + _DONE, encoding="utf-8")
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(script_file)]
        before_s = server.cpu_s()
        output = subprocess.run(
            [*command, f"http://127.0.0.1:{server.port}{path}"], check=True, capture_output=True, text=True
        ).stdout
        cpu_s = server.cpu_s() - before_s
    figures = json.loads(output.rpartition("FIGURES ")[2])
    if figures["failed"] or not figures["requests"]:
        raise RuntimeError(f"{figures['failed']} of {figures['requests']} requests to {path} failed")
    return Load(
        per_second=figures["requests"] / figures["duration_us"] * 1e6,
        p50_ms=figures["p50_us"] / 1e3,
        p99_ms=figures["p99_us"] / 1e3,
        longest_ms=figures["longest_us"] / 1e3,
        cpu_us=cpu_s / figures["requests"] * 1e6,
    )
