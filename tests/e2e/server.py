"""A real server in a process of its own, reached over a real socket."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.forks import Process, fork_server

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"
"""The embedded models, as `make models` prepares them."""

GRPC_PORT = "ROUNDHOUSE_SERVER__GRPC_PORT"
"""The variable to set to `free_port()` in tests of gRPC, or to "" for the port of HTTP alone."""

_DEFAULTS = {GRPC_PORT: "0", "ROUNDHOUSE_PERFORMANCE__INTRA_OP_THREADS": "1"}
"""Servers of several tests share the cores: with more threads, each operator would wait for a core several times."""

READY_WITHIN_S = 300.0
WAIT_S = 120.0
"""How long tests wait for a condition. Only an error takes as long, on any machine."""

_SERVER_TIMING = re.compile(
    r"(decode|queue|compute|encode);dur=\d+\.\d+(, (queue|compute|encode);dur=\d+\.\d+){3}"
    r"(, step-[\w-]+;dur=\d+\.\d+)*"
)
_DURATION = re.compile(r";dur=([\d.]+)")
_BEGUN_S = "begun_s"


@dataclass(frozen=True, slots=True)
class Fork:
    """How a server is started as a fork, which takes a tenth of the CPU time of `python -m app`."""

    needs_torch: bool
    is_gated: bool = False


class RunningServer:
    """`python -m app serve …` on a free port. The end of the block stops it by SIGTERM and checks its exit status."""

    def __init__(
        self,
        arguments: Sequence[str],
        environ: dict[str, str] | None = None,
        cwd: Path = ROOT,
        fork: Fork | None = None,
        program: Sequence[str] = (sys.executable, "-m", "app"),
    ) -> None:
        """`arguments`: those of `serve`. gRPC is off unless `environ` names a port. `fork`: None for a real start of
        `program`.
        """
        own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
        variables = own | _DEFAULTS | (environ or {})
        if not variables[GRPC_PORT]:
            del variables[GRPC_PORT]
        self.process: Process
        if fork is None:
            process = subprocess.Popen(
                [*program, "serve", *arguments],
                cwd=cwd,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            assert process.stderr is not None
            self.process, self._stderr = process, process.stderr
        else:
            self.process, self._stderr = fork_server(arguments, variables, cwd, fork.needs_torch, fork.is_gated)
        self.lines: list[str] = []
        self._line_read = threading.Condition()
        self._closed = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = self.grpc_port = 0
        # Without TLS: the certificates of the system take 50 ms to read.
        self.client = httpx.Client(verify=False, trust_env=False)

    def __enter__(self) -> Self:
        try:
            listening = self.wait_for_log("listening")
            self.port, self.grpc_port = listening["port"], listening["grpc_port"]
        except BaseException:
            self.kill()
            raise
        self.client = httpx.Client(base_url=self.url, timeout=WAIT_S, event_hooks=CHECKS, verify=False, trust_env=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.client.close()
        if error is not None or self.process.returncode is not None:
            self.kill()
        else:
            self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> list[dict[str, Any]]:
        """The events logged until now."""
        with self._line_read:
            return [json.loads(line) for line in self.lines if line.startswith("{")]

    def events(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """Return the logged events with this name and these fields."""
        return [e for e in self.log if e["event"] == event and fields.items() <= e.items()]

    def wait_for_log(self, event: str, timeout_s: float = READY_WITHIN_S, **fields: object) -> dict[str, Any]:
        """Wait for an event with this name and these fields; return the first."""
        until_s = time.monotonic() + timeout_s
        # One lock covers check and wait: a line that is read between them would not end the wait.
        with self._line_read:
            while not (found := self.events(event, **fields)):
                if self._closed or not self._line_read.wait(until_s - time.monotonic()):
                    raise AssertionError(f"no {event} {fields} in the log:\n" + "\n".join(self.lines[-50:]))
        return found[0]

    def wait_ready(self) -> Self:
        """Wait until /health/ready answers 200."""
        wait_until(lambda: self.client.get("/health/ready").status_code == 200, READY_WITHIN_S)
        return self

    def infer(self, model: str, /, **body: object) -> Any:
        """Return the JSON body of a request that must be answered with 200."""
        answer = self.client.post(f"/models/{model}/infer", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: bytes | str, **headers: str) -> httpx.Response:
        """Send a body as it is, with JSON's content type."""
        return self.client.post(path, content=body, headers={"content-type": "application/json", **headers})

    def metrics(self) -> dict[str, Metric]:
        """Return the families on /metrics by name."""
        return {family.name: family for family in text_string_to_metric_families(self.client.get("/metrics").text)}

    def sample(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with this name and these labels."""
        # Only these lines are parsed: a page of many models is long, and tests poll it.
        page = self.client.get("/metrics").text
        text = "".join(f"{line}\n" for line in page.splitlines() if line.startswith(name))
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def inflight(self, model: str) -> int:
        """Return how many requests to this model were decoded and are not answered yet."""
        inflight: int = self.client.get(f"/models/{model}").json()["requests"]["inflight"]
        return inflight

    def stop(self, timeout_s: float = WAIT_S) -> None:
        """Send SIGTERM; the server must drain and exit with status 0."""
        self.process.send_signal(signal.SIGTERM)
        self.wait_stopped(0, timeout_s)

    def wait_stopped(self, status: int, timeout_s: float = WAIT_S) -> None:
        """Wait for the end of the process; check its status, and that its log holds no traceback."""
        try:
            assert self.process.wait(timeout_s) == status, "\n".join(self.lines[-50:])
        finally:
            self.kill()
        self.check_log()

    def check_log(self) -> None:
        """Check that the log shows no bug of the server."""
        ours = ("Traceback", "internal error", "integrity check failed")
        assert not [line for line in self.lines if any(sign in line for sign in ours)]

    def kill(self) -> None:
        """End the process if it runs, and read the rest of its log."""
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()

    def _read(self) -> None:
        with self._stderr as stream:
            for line in stream:
                with self._line_read:
                    self.lines.append(line.decode().rstrip("\n"))
                    self._line_read.notify_all()
        with self._line_read:
            self._closed = True
            self._line_read.notify_all()


@contextmanager
def serving(
    folder: Path,
    config: str,
    environ: dict[str, str] | None = None,
    gated: bool = False,
    is_fork: bool = True,
    needs_torch: bool = False,
) -> Iterator[RunningServer]:
    """Start a server with this config.toml on a free port; it is not yet ready.

    `gated`: see `RunGate`. `is_fork`: false for tests of the process itself, of its start, memory and end.
    `needs_torch`: the test will load a PyTorch model.
    """
    file = folder / "config.toml"
    file.write_text(config, encoding="utf-8")
    # Its caches are no other server's, and not the user's.
    environ = {"XDG_CACHE_HOME": str(folder / "caches")} | (environ or {})
    fork = Fork(needs_torch or "[models.torch_models]" in config, gated) if is_fork else None
    with RunningServer(["--config", str(file), "--port", "0"], environ, fork=fork) as server:
        yield server


def run_examples(server: RunningServer, **environ: str) -> list[tuple[str, Any]]:
    """Run the curl lines that the server logged at its start, in a shell; return them with their decoded answers."""
    lines = server.wait_for_log("ready")["examples"]
    assert len(server.events("ready")) == 1
    outputs = [
        subprocess.run(
            line, shell=True, env=os.environ | environ, capture_output=True, text=True, timeout=WAIT_S, check=True
        ).stdout
        for line in lines
    ]
    return [(line, json.loads(output)) for line, output in zip(lines, outputs, strict=True)]


def free_port() -> str:
    """Return a port on which no process listens now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def wait_until(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Poll the condition until it holds; fail the test after `timeout_s`."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "the condition did not hold in time"
        time.sleep(0.02)


def check_disconnect_frees_sequence(server: RunningServer, model: str, open_stream: Callable[[], Any]) -> None:
    """Check that the server ends a text whose client disconnects from its stream.

    On a busy machine a text can be complete before the server is asked for it; then another is begun.
    """
    for _ in range(20):
        stream = open_stream()
        next(iter(stream))
        unfinished = server.inflight(model)
        stream.close()
        wait_until(lambda: server.inflight(model) == 0, 5)
        if unfinished:
            return
    pytest.fail("each text was complete before its client disconnected")


def note_begin(request: httpx.Request) -> None:
    """Note when a request begins, for `check_frame`."""
    request.extensions[_BEGUN_S] = time.perf_counter()


def check_frame(answer: httpx.Response) -> None:
    """Check what the contract promises of every response: the request's ID, Server-Timing, the error's form."""
    assert re.fullmatch(r"[\w.:/+=-]{1,128}", answer.headers["x-request-id"], re.ASCII)
    timing = answer.headers["server-timing"]
    assert _SERVER_TIMING.fullmatch(timing), answer.headers
    life_ms = (time.perf_counter() - answer.request.extensions[_BEGUN_S]) * 1e3
    assert all(float(phase) <= life_ms + 1 for phase in _DURATION.findall(timing)), (timing, life_ms)
    if answer.status_code >= 400 and answer.request.method != "HEAD" and answer.url.path != "/health/ready":
        answer.read()
        check_error(answer)


CHECKS: Any = {"request": [note_begin], "response": [check_frame]}
"""The event hooks of a client of a server."""

_OPENAI_ROOTS = ("/v1", "/embeddings", "/rerank", "/score", "/classify", "/tokenize", "/detokenize", "/pooling")
_SEARCH_PATHS = ("/v1/similarity", "/v1/collections")
_HUB_PATH = re.compile(r"/models/[^/]+(/[^/]+)?")
_TEI_PATHS = (
    *("/", "/generate", "/generate_stream"),
    *("/embed", "/embed_sparse", "/rerank", "/predict", "/similarity", "/tokenize"),
)


def check_error(answer: httpx.Response) -> dict[str, str]:
    """Check the form of an error and return it: the contract's, OpenAI's below most of /v1, the Open Inference
    Protocol's below /v2, which is the message alone, Cohere's, and that of Text Embeddings Inference. The status must
    not be 500.
    """
    body, path = answer.json(), answer.url.path
    error: dict[str, str]
    if path in ("/v2/embed", "/v2/rerank"):
        assert body.keys() == {"id", "message"}
        assert body["id"] == answer.headers["x-request-id"]
        error = body
    elif (path in _TEI_PATHS or _HUB_PATH.fullmatch(path)) and isinstance(body["error"], str):
        assert body.keys() == {"error", "error_type"}
        error = {"message": body["error"], "type": body["error_type"]}
    elif path.startswith("/api/"):
        assert body.keys() == {"error"}
        error = {"message": body["error"]}
    elif path.startswith("/v1/messages"):
        assert body.keys() == {"type", "error", "request_id"}
        assert body["request_id"] == answer.headers["x-request-id"]
        error = body["error"]
    else:
        assert body.keys() == {"error"}
        error = body["error"]
        if path.startswith("/v2") or (path.endswith(":predict") and isinstance(body["error"], str)):
            error = {"message": body["error"]}
            assert isinstance(body["error"], str)
        elif path.startswith(_OPENAI_ROOTS) and not path.startswith(_SEARCH_PATHS):
            assert error.keys() == {"message", "type", "param", "code"}
        else:
            assert error.keys() == {"code", "message", "request_id"}
            assert error["request_id"] == answer.headers["x-request-id"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.status_code != 500, error
    assert "Traceback" not in answer.text
    return error


def assert_refused(answer: httpx.Response, status: int, code: str, *words: str) -> str:
    """Check status and code of an error, and that its message holds all of `words`; return the message."""
    assert answer.status_code == status, answer.text
    error = check_error(answer)
    assert error["code"] == code, error
    for word in words:
        assert word in error["message"], error["message"]
    return error["message"]
