"""A real Roundhouse in a process of its own, reached over a real socket."""

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
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "models"
"""The embedded models, as `make models` prepares them."""

GRPC_PORT = "ROUNDHOUSE_SERVER__GRPC_PORT"
"""The variable that tests which speak gRPC set, to `free_port()`."""

READY_WITHIN_S = 60.0
_SERVER_TIMING = re.compile(r"(decode|queue|compute|encode);dur=\d+\.\d+(, (queue|compute|encode);dur=\d+\.\d+){3}")


class RunningServer:
    """`python -m app serve …` on a free port. Leaving the block ends it by SIGTERM and holds it to a clean end."""

    def __init__(self, arguments: Sequence[str], environ: dict[str, str] | None = None, cwd: Path = ROOT) -> None:
        """`arguments`: what follows `serve`. Without a port for gRPC in `environ` there is none."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app", "serve", *arguments],
            cwd=cwd,
            env=own | {GRPC_PORT: "0"} | (environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self.lines: list[str] = []
        self._came = threading.Condition()
        self._closed = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = self.grpc_port = 0
        self.client = httpx.Client()

    def __enter__(self) -> Self:
        try:
            listening = self.wait_for_log("listening")
            self.port, self.grpc_port = listening["port"], listening["grpc_port"]
        except BaseException:
            self.kill()
            raise
        self.client = httpx.Client(
            base_url=self.url, timeout=30, event_hooks={"response": [check_frame]}, trust_env=False
        )
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
        """The events logged so far."""
        with self._came:
            return [json.loads(line) for line in self.lines if line.startswith("{")]

    def events(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """The logged events of this name with these fields."""
        return [e for e in self.log if e["event"] == event and fields.items() <= e.items()]

    def wait_for_log(self, event: str, timeout_s: float = READY_WITHIN_S, **fields: object) -> dict[str, Any]:
        """The first event of this name with these fields, waited for."""
        until_s = time.monotonic() + timeout_s
        # Held from the look to the wait: a line that comes between the two would wake nobody.
        with self._came:
            while not (found := self.events(event, **fields)):
                if self._closed or not self._came.wait(until_s - time.monotonic()):
                    raise AssertionError(f"no {event} {fields} in the log:\n" + "\n".join(self.lines[-50:]))
        return found[0]

    def wait_ready(self) -> Self:
        """Until /health/ready says 200."""
        wait_until(lambda: self.client.get("/health/ready").status_code == 200, READY_WITHIN_S)
        return self

    def infer(self, model: str, /, **body: object) -> Any:
        """The answer to a question that must be answered with 200."""
        answer = self.client.post(f"/models/{model}/infer", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: bytes | str, **headers: str) -> httpx.Response:
        """A body as it is, called JSON."""
        return self.client.post(path, content=body, headers={"content-type": "application/json", **headers})

    def metrics(self) -> dict[str, Metric]:
        """The families on /metrics by name."""
        return {family.name: family for family in text_string_to_metric_families(self.client.get("/metrics").text)}

    def sample(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name that have these labels."""
        samples = [sample for family in self.metrics().values() for sample in family.samples]
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    def inflight(self, model: str) -> int:
        """DecodedRequest requests to this model that have not been answered."""
        inflight: int = self.client.get(f"/models/{model}").json()["requests"]["inflight"]
        return inflight

    def stop(self, timeout_s: float = 20.0) -> None:
        """Ends the server by SIGTERM; it has to drain and leave with status 0."""
        self.process.send_signal(signal.SIGTERM)
        self.wait_stopped(0, timeout_s)

    def wait_stopped(self, status: int, timeout_s: float = 20.0) -> None:
        """Until the process has ended: with this status, and no traceback in its log."""
        try:
            assert self.process.wait(timeout_s) == status, "\n".join(self.lines[-50:])
        finally:
            self.kill()
        self.check_log()

    def check_log(self) -> None:
        """Nothing in it that would be our bug."""
        ours = ("Traceback", "internal error", "integrity check failed")
        assert not [line for line in self.lines if any(sign in line for sign in ours)]

    def kill(self) -> None:
        """Makes sure that the process is gone and that everything it wrote has been read."""
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                with self._came:
                    self.lines.append(line.decode().rstrip("\n"))
                    self._came.notify_all()
        with self._came:
            self._closed = True
            self._came.notify_all()


@contextmanager
def serving(folder: Path, config: str, environ: dict[str, str] | None = None) -> Iterator[RunningServer]:
    """A server with this config.toml, in which `port` is left out; not yet ready."""
    file = folder / "config.toml"
    file.write_text(config, encoding="utf-8")
    with RunningServer(["--config", str(file), "--port", "0"], environ) as server:
        yield server


def free_port() -> str:
    """One that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Asks again and again; fails the test if the condition does not come to hold."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "waited in vain"
        time.sleep(0.02)


def check_frame(answer: httpx.Response) -> None:
    """What the contract promises of every answer, whatever its path and status."""
    assert re.fullmatch(r"[\w.:/+=-]{1,128}", answer.headers["x-request-id"], re.ASCII)
    assert _SERVER_TIMING.fullmatch(answer.headers["server-timing"]), answer.headers
    if answer.status_code >= 400 and answer.request.method != "HEAD" and answer.url.path != "/health/ready":
        answer.read()
        check_error(answer)


def check_error(answer: httpx.Response) -> dict[str, str]:
    """The error of an answer that has to have the contract's form, OpenAI's below /v1, or the Open Inference Protocol's
    below /v2, which is the message alone, and is none of ours.
    """
    body = answer.json()
    assert body.keys() == {"error"}
    error: dict[str, str] = body["error"]
    if answer.url.path.startswith("/v2"):
        error = {"message": body["error"]}
        assert isinstance(body["error"], str)
    elif answer.url.path.startswith("/v1"):
        assert error.keys() == {"message", "type", "param", "code"}
    else:
        assert error.keys() == {"code", "message", "request_id"}
        assert error["request_id"] == answer.headers["x-request-id"]
    assert answer.headers["content-type"] == "application/json"
    assert answer.status_code != 500, error
    assert "Traceback" not in answer.text
    return error


def assert_refused(answer: httpx.Response, status: int, code: str, *words: str) -> str:
    """The message of a refusal with this status and code; it has to say every one of `words`."""
    assert answer.status_code == status, answer.text
    error = check_error(answer)
    assert error["code"] == code, error
    for word in words:
        assert word in error["message"], error["message"]
    return error["message"]
