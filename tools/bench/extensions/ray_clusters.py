"""Start Ray clusters of one node with servers on them: Roundhouse, and the plain application of Ray Serve."""

import http.client
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
import psutil

from tests.e2e.on_ray.cluster import RayCluster, cluster_of
from tools.bench.shared.cores import ALL_CORES, SERVER_CORES
from tools.bench.shared.servers import ROOT, RunningServer, free_port

# The number that a node claims to have: all replicas and ingresses start.
_CPUS = 8.0
_DEPLOYED_S = 300.0
_READY_S = 60.0
_POLL_S = 0.1
# Settings of the peer. All work with the packages of `ray[serve]` alone.
_OPTIMIZED = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_HA_PROXY": "1"}
PEER = "FastAPI and serve.batch on Ray Serve, with HAProxy and its throughput optimizations"
_CONFIG = """
[server]
port = {port}
grpc_port = 0

[performance]
intra_op_threads = 1

[[models.onnx_models]]
name = "one"
path = {texts}

[[models.onnx_models]]
name = "digits"
path = {tensors}
"""
_WITH_TWO = """
[[models.onnx_models]]
name = "two"
path = {texts}
replicas = 2
"""


@dataclass(frozen=True, slots=True)
class ServerOnRay:
    """A server and its cluster. `server.process` is the parent of all processes of the cluster."""

    server: RunningServer
    cluster: RayCluster

    def pin_all(self) -> None:
        """Pin all processes to the core of the server."""
        _pin(self._processes(), SERVER_CORES)

    def pin_replicas(self, deployment: str) -> None:
        """Pin each replica of a deployment to a core of its own, and permit all cores to the other processes."""
        _pin(self._processes(), ALL_CORES)
        replicas = sorted(self.cluster.replicas(deployment), key=lambda each: each.pid)
        for replica, core in zip(replicas, sorted(ALL_CORES), strict=False):
            _pin([replica], frozenset({core}))

    def _processes(self) -> Sequence[psutil.Process]:
        parent = psutil.Process(self.server.process.pid)
        return [parent, *parent.children(recursive=True)]


@contextmanager
def roundhouse_on_ray(folder: Path, texts: Path, tensors: Path) -> Iterator[ServerOnRay]:
    """Deploy the models `one` and `digits`, as many as the peer has; they are ready when the block begins."""
    with cluster_of(1, _CPUS) as cluster:
        yield _deployed(cluster, folder / "ray.toml", _config(free_port(), texts, tensors))


def with_two_replicas(server: ServerOnRay, folder: Path, texts: Path, tensors: Path) -> ServerOnRay:
    """Deploy the model `two` with two replicas beside the others. Idle replicas take CPU time, so they start late."""
    config = _config(server.server.port, texts, tensors) + _filled(_WITH_TWO, texts=texts)
    return _deployed(server.cluster, folder / "ray-two.toml", config)


def _config(port: int, texts: Path, tensors: Path) -> str:
    return _filled(_CONFIG, texts=texts, tensors=tensors, port=port)


def _filled(text: str, **values: Path | int) -> str:
    quoted = {
        name: orjson.dumps(str(each)).decode() if isinstance(each, Path) else each for name, each in values.items()
    }
    return text.format(**quoted)


def _deployed(cluster: RayCluster, path: Path, config: str) -> ServerOnRay:
    path.write_text(config, encoding="utf-8")
    done = cluster.deploy(path, _DEPLOYED_S)
    if done.returncode:
        raise RuntimeError(f"roundhouse deploy exited with {done.returncode}: {done.stderr[-500:]}")
    port = int(tomllib.loads(config)["server"]["port"])
    return _answering(cluster, port, "/health/ready")


@contextmanager
def plain_ray_serve(folder: Path, texts: Path, tensors: Path) -> Iterator[ServerOnRay]:
    """Deploy the applications `texts` and `tensors`; they answer when the block begins."""
    proxy = folder / "haproxy"
    proxy.mkdir(exist_ok=True)
    environment = {
        **_OPTIMIZED,
        "RAY_SERVE_HAPROXY_NBTHREAD": str(len(SERVER_CORES)),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(proxy / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(proxy / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(proxy),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(proxy / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
    }
    with cluster_of(1, _CPUS, environment) as cluster:
        port = free_port()
        command = [sys.executable, "-m", "tools.bench.peers.ray_serve_app", cluster.address, str(port)]
        done = subprocess.run(
            [*command, str(texts), str(tensors / "model.onnx")],
            cwd=ROOT,
            env=cluster.environ,
            capture_output=True,
            text=True,
            timeout=_DEPLOYED_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the application of Ray Serve was not deployed: {done.stderr[-500:]}")
        yield _answering(cluster, port, "/tensors/health")


def _answering(cluster: RayCluster, port: int, path: str) -> ServerOnRay:
    """Wait until the server answers a path with 200. Raises RuntimeError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_READY_S)
    until_s = time.perf_counter() + _READY_S
    while time.perf_counter() < until_s:
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
        else:
            if answer.status == 200:
                return ServerOnRay(RunningServer(cluster.process, port, time.perf_counter(), connection), cluster)
        time.sleep(_POLL_S)
    raise RuntimeError(f"no 200 from {path} within {_READY_S:.0f} s")


def _pin(processes: Sequence[psutil.Process], cores: frozenset[int]) -> None:
    """Pin all threads of processes, and those that they start later."""
    for process in processes:
        with suppress(psutil.Error):
            for thread in process.threads():
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, cores)
