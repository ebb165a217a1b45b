"""Start Ray clusters of one node with servers on them: Roundhouse, and the plain application of Ray Serve."""

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
import psutil

from tests.bench.cores import ALL_CORES, SERVER_CORES
from tests.bench.servers import ROOT, RunningServer, free_port
from tests.e2e.on_ray.cluster import RayCluster, cluster_of

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
name = "two"
path = {texts}
replicas = 2

[[models.onnx_models]]
name = "digits"
path = {tensors}
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
    """Deploy the models `one`, `two` (with two replicas) and `digits`; they are ready when the block begins."""
    with cluster_of(1, _CPUS) as cluster:
        port = free_port()
        config = folder / "ray.toml"
        paths = {name: orjson.dumps(str(path)).decode() for name, path in (("texts", texts), ("tensors", tensors))}
        config.write_text(_CONFIG.format(port=port, **paths), encoding="utf-8")
        done = cluster.deploy(config, _DEPLOYED_S)
        if done.returncode:
            raise RuntimeError(f"roundhouse deploy exited with {done.returncode}: {done.stderr[-500:]}")
        yield _answering(cluster, port, "/health/ready")


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
        command = [sys.executable, "-m", "tests.bench.peers.ray_serve_app", cluster.address, str(port)]
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
