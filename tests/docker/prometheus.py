"""Run Prometheus and promtool: Debian's, which `make test` fetches where possible."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from tests.docker.files import read_yaml
from tests.e2e.server import WAIT_S, wait_until


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`. Skip the test if it is absent, except in CI."""
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=os.pathsep.join([str(beside), os.environ.get("PATH", "")]))
    if found:
        return found
    if os.environ.get("CI"):
        pytest.fail(f"CI has no {name}; make dev fetches it from Debian's package prometheus")
    pytest.skip(f"needs {name}, of Debian's package prometheus")


def promtool(*arguments: str) -> str:
    """Return the output of promtool, which must succeed."""
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class RunningPrometheus:
    """The client of a running Prometheus."""

    def __init__(self, port: int) -> None:
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S, trust_env=False, verify=False)

    def close(self) -> None:
        self._client.close()

    def is_ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an instant query."""
        answer = self._client.post("/api/v1/query", data={"query": expression}).json()
        assert answer["status"] == "success", (expression, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def exemplars(self, expression: str) -> list[dict[str, Any]]:
        """Return the stored exemplars of the series in an expression."""
        times = {"start": 0, "end": time.time() + WAIT_S}
        answer = self._client.post("/api/v1/query_exemplars", data={"query": expression, **times}).json()
        assert answer["status"] == "success", (expression, answer)
        return [each for series in answer["data"] for each in series["exemplars"]]

    def firing(self) -> dict[str, list[dict[str, str]]]:
        """Return the labels of the firing alerts, by the alert's name."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in self._client.get("/api/v1/alerts").json()["data"]["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found


@contextmanager
def running_prometheus(
    folder: Path, targets: Sequence[str], key: str, stores_exemplars: bool = False
) -> Iterator[RunningPrometheus]:
    """Run one with docker/prometheus.yml and docker/alerts.yml that scrapes these `host:port`s with an API key.

    Its minutes are seconds, and it scrapes twice a second.
    """
    config = dict(read_yaml("prometheus.yml"))
    config["global"] = dict.fromkeys(config["global"], "500ms")
    (job,) = config["scrape_configs"]
    (folder / "key").write_text(key + "\n", encoding="ascii")
    authorization = job["authorization"] | {"credentials_file": str(folder / "key")}
    config["scrape_configs"] = [job | {"static_configs": [{"targets": list(targets)}], "authorization": authorization}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    rules = json.dumps(read_yaml("alerts.yml"))
    hurried = re.sub(r"\b(\d+)m\b", r"\1s", re.sub(r"\b(\d+)h\b", r"\1m", rules))
    (folder / "alerts.yml").write_text(yaml.safe_dump(json.loads(hurried)), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        *(["--enable-feature=exemplar-storage"] if stores_exemplars else []),
    )
    log = folder / "prometheus.log"
    with log.open("wb") as lines:
        process = subprocess.Popen([program("prometheus"), *arguments], stdin=subprocess.DEVNULL, stderr=lines)
    prometheus = RunningPrometheus(port)
    try:
        wait_until(lambda: prometheus.is_ready() or process.poll() is not None)
        assert process.poll() is None, log.read_text(encoding="utf-8")
        yield prometheus
    finally:
        prometheus.close()
        process.terminate()
        process.wait(WAIT_S)
