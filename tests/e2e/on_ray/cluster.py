"""A Ray cluster of a few nodes on this machine, and servers that are deployed on it."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import psutil

from tests.e2e.server import CHECKS, READY_WITHIN_S, ROOT, WAIT_S, RunningServer, free_port, wait_until

NODE_CPUS = 8.0
"""That each node of the shared cluster claims. Replicas of tests reserve 0.01 to 1."""
_START_ATTEMPTS = 6
# Ray's own, of a node: its agents have this long to write their ports, and no setting of Ray changes it. On an idle
# core they take 2 s, beside other tests up to 25 s.
_AGENT_TIMEOUT_S = 15


class ClusterEnded(Exception):
    """The process of a cluster ended; with the end of what it and Ray wrote."""


class RayCluster:
    """Owned by a fixture. The nodes listen on loopback only."""

    def __init__(self, nodes: int, cpus: float, environ: Mapping[str, str] | None = None) -> None:
        """`cpus`: that each node claims to have; replicas reserve parts of them. `environ`: further variables."""
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
        # Replicas import the code where this process does.
        self.environ |= {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        # Ray gives its workers the niceness 15: they would starve beside other processes of a busy machine.
        self.environ |= {"RAY_worker_niceness": "0", **(environ or {})}
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (`close`)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.ray_nodes", str(nodes), str(cpus)],
                cwd=ROOT,
                env=self.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                # Ctrl-C ends it by `close` only, which finds its children then.
                start_new_session=True,
            )
            started = time.monotonic()
            try:
                self.address = self._line()
                return
            except ClusterEnded:
                self.close()
                # A node that ends at once does not wait for its agents: starting it again would change nothing.
                if attempt == _START_ATTEMPTS or time.monotonic() - started < _AGENT_TIMEOUT_S:
                    raise
            except BaseException:
                self.close()
                raise

    @property
    def process(self) -> "subprocess.Popen[str]":
        """The parent of all processes of the cluster."""
        return self._process

    def kill_node(self) -> None:
        """End all processes of a node that is not the head."""
        self._command("kill")

    def add_node(self) -> None:
        """Start another node."""
        self._command("add")

    def replicas(self, deployment: str) -> list[psutil.Process]:
        """Return the processes of the replicas of a deployment, on all nodes."""
        # While a replica runs a method for Serve, the title ends with the name of the method.
        pattern = re.compile(rf":{re.escape(deployment)}(\.[\w()]+)?$")
        found = []
        for process in psutil.Process(self._process.pid).children(recursive=True):
            try:
                title = process.cmdline()[:1]
            except psutil.Error:
                continue
            if title and pattern.search(title[0]):
                found.append(process)
        return found

    def resident_bytes(self) -> int:
        """Return the memory of all processes of the cluster."""
        total = 0
        for process in psutil.Process(self._process.pid).children(recursive=True):
            try:
                total += process.memory_full_info().uss
            except psutil.Error:
                continue
        return total

    def deploy(self, config: Path, timeout_s: float = READY_WITHIN_S) -> "subprocess.CompletedProcess[str]":
        """Run `roundhouse deploy`."""
        return subprocess.run(
            [sys.executable, "-m", "app", "deploy", str(config), "--address", self.address],
            cwd=ROOT,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def delete(self, application: str) -> None:
        """End the processes of an application."""
        order = "import sys, ray; from ray import serve; ray.init(sys.argv[1], log_to_driver=False); "
        subprocess.run(
            [sys.executable, "-c", f"{order}serve.delete(sys.argv[2])", self.address, application],
            cwd=ROOT,
            env=self.environ,
            capture_output=True,
            timeout=WAIT_S,
            check=True,
        )

    def close(self) -> None:
        """Stop all nodes; end what is left of them."""
        left = []
        with suppress(psutil.NoSuchProcess):
            left = psutil.Process(self._process.pid).children(recursive=True)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(WAIT_S)
        finally:
            for process in left:
                if process.is_running():
                    process.kill()
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._errors.close()

    def _command(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()
        assert self._line() == "done"

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            self._errors.seek(0)
            raise ClusterEnded(f"the cluster ended: {self._process.poll()}\n{self._errors.read()[-2000:]}")
        return line


@contextmanager
def cluster_of(nodes: int, cpus: float, environ: Mapping[str, str] | None = None) -> Iterator[RayCluster]:
    """Run a cluster within the block."""
    cluster = RayCluster(nodes, cpus, environ)
    try:
        yield cluster
    finally:
        cluster.close()


class DeployedServer(RunningServer):
    """A server on Ray, with the methods of the shared server."""

    def __init__(
        self, cluster: RayCluster, folder: Path, models: str, ray: str = "", application: str = "roundhouse"
    ) -> None:
        """Deploy it, and wait until its models are ready. `models`, `ray`: tables of config.toml."""
        self.cluster = cluster
        self.application = application
        ray = f'application = "{application}"\n{ray}'
        self.config = folder / "config.toml"
        self.port, self.grpc_port = int(free_port()), int(free_port())
        self.lines: list[str] = []
        self._line_read = threading.Condition()
        self._closed = True
        self._tables = f"[server]\nport = {self.port}\ngrpc_port = {self.grpc_port}\n[ray]\n{ray}"
        self.update(models)
        self.client = httpx.Client(base_url=self.url, timeout=WAIT_S, event_hooks=CHECKS, verify=False, trust_env=False)

    def update(self, models: str) -> None:
        """Deploy the application again with these models."""
        self.config.write_text(self._tables + models, encoding="utf-8")
        done = self.cluster.deploy(self.config)
        assert done.returncode == 0, done.stdout + done.stderr

    def replicas(self, deployment: str) -> list[psutil.Process]:
        """Return the processes of the replicas of a deployment, on all nodes."""
        return self.cluster.replicas(f"{self.application}:{deployment}")

    def num_running(self, deployment: str) -> int:
        """Return how many processes of a deployment run."""
        return len(self.replicas(deployment))

    def kill_replica(self, deployment: str) -> None:
        """Kill one process of a deployment."""
        replica = self.replicas(deployment)[0]
        replica.send_signal(signal.SIGKILL)
        wait_until(lambda: not replica.is_running() or replica.status() == psutil.STATUS_ZOMBIE)

    def check_log(self) -> None:
        """The logs are those of Ray."""


@contextmanager
def deployment(cluster: RayCluster, folder: Path, models: str, name: str) -> Iterator[DeployedServer]:
    """Deploy entries of models, each with a small part of a CPU."""
    entries = re.sub(r"^\[\[models\.\w+\]\]$", r"\g<0>\nnum_cpus = 0.1", models, flags=re.MULTILINE)
    tables = f"[performance]\nintra_op_threads = 1\n{entries}\n"
    deployed = DeployedServer(cluster, folder, tables, "ingress_cpus = 0.1\n", name)
    try:
        yield deployed.wait_ready()
    finally:
        deployed.client.close()


class SharedCluster:
    """A cluster and its deployments, from their first use until `close`."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self._cluster: RayCluster | None = None
        self._deployed: dict[str, DeployedServer] = {}

    def get(self) -> RayCluster:
        """Return the cluster, with three nodes; start it if it does not run."""
        if self._cluster is None:
            self._cluster = self._running.enter_context(cluster_of(3, NODE_CPUS))
        return self._cluster

    def deployed(self, application: str, folder: Path, models: str) -> DeployedServer:
        """Return the deployment of this name. `folder`, `models`: of a new one."""
        if application not in self._deployed:
            one = self._running.enter_context(deployment(self.get(), folder, models, application))
            self._deployed[application] = one
        return self._deployed[application]

    def close(self) -> None:
        """End the deployments and the cluster, if they run."""
        self._cluster = None
        self._deployed.clear()
        self._running.close()


SHARED = SharedCluster()
