"""Read the groups of pods of a RayService, and run its application on one node that stands for one pod of each.

A shell runs the command of the head, made of its `rayStartParams` as KubeRay does. The node has the CPUs and resources
of all groups. Addresses are those of loopback, ports are free ones, and paths are mapped as in kubelet.py. This cannot
show the Services and policies of the manifest.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil
import yaml  # type: ignore[import-untyped]

from tests.docker.kubelet import Files, Kubelet, data_of
from tests.docker.manifests import of_kind
from tests.e2e.server import READY_WITHIN_S, ROOT, WAIT_S, free_port, wait_until

_TOKEN = "a-token-that-the-operator-has-made"
_APPLICATIONS = "/api/serve/applications/"
_NODE_IP = "127.0.0.2"
_DASHBOARD, _AGENT, _METRICS = 8265, 52365, 8080


def groups_of(service: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the groups by name, with the parameters of `ray start` that KubeRay adds."""
    cluster = deepcopy(service["spec"]["rayClusterConfig"])
    found = {"head": cluster["headGroupSpec"]} | {each["groupName"]: each for each in cluster["workerGroupSpecs"]}
    added = {"block": "true", "dashboard-agent-listen-port": str(_AGENT), "metrics-export-port": str(_METRICS)}
    for group in found.values():
        group["rayStartParams"] = added | group["rayStartParams"]
    return found


class RayPods:
    """Runs the node within the block."""

    def __init__(self, objects: Sequence[dict[str, Any]], secrets: Mapping[str, Files], folder: Path) -> None:
        """`secrets`: content of the Secrets that an operator makes."""
        self._service = of_kind(list(objects), "RayService")
        self._groups = groups_of(self._service)
        data = data_of(objects, secrets)
        # Paths of sockets are short, and those of tests are not.
        self._session = tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.kubelets: dict[str, Kubelet] = {}
        for name, group in self._groups.items():
            (folder / name).mkdir()
            self.kubelets[name] = Kubelet(group["template"]["spec"], data, folder / name, ())
        self._node = self.kubelets["head"]
        self.ports = self._node.ports | {_DASHBOARD: int(free_port()), _AGENT: int(free_port())}
        for kubelet in self.kubelets.values():
            kubelet.ports = self.ports
        config = self._node.inside(data["roundhouse-ray"]["config.toml"].decode())
        self._node.write_volume("/app/config", {"config.toml": config.encode()})
        self._dashboard = httpx.Client(
            base_url=f"http://127.0.0.1:{self.ports[_DASHBOARD]}",
            headers={"authorization": f"Bearer {_TOKEN}"},
            timeout=READY_WITHIN_S,
            verify=False,
            trust_env=False,
        )

    def __enter__(self) -> Self:
        self._process = self._start()
        try:
            wait_until(self._has_started, READY_WITHIN_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def submit(self) -> None:
        """Submit serveConfigV2 to the dashboard as KubeRay does, and wait until the application runs."""
        config = yaml.safe_load(self._service["spec"]["serveConfigV2"])
        for application in config["applications"]:
            application["args"] = {name: self._node.inside(text) for name, text in application["args"].items()}

        def is_accepted() -> bool:
            # KubeRay submits again where the dashboard fails, as it does beside a controller that is still starting.
            try:
                done = self._dashboard.put(_APPLICATIONS, json=config)
            except httpx.TransportError:
                return False
            assert done.is_success or done.is_server_error, done.text
            return done.is_success

        wait_until(is_accepted, READY_WITHIN_S)
        wait_until(self._is_running, READY_WITHIN_S)

    def refuses_other_tokens(self) -> bool:
        """Return whether the dashboard refuses a client without the token of the cluster."""
        answer = self._dashboard.get(_APPLICATIONS, headers={"authorization": "Bearer wrong"})
        return answer.status_code in (401, 403)

    def _has_started(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "`ray start` has failed"
        return self._node.probe("startupProbe") and self._node.probe("livenessProbe")

    def _is_running(self) -> bool:
        found = self._dashboard.get(_APPLICATIONS).json()["applications"].get("roundhouse", {"status": ""})
        assert found["status"] != "DEPLOY_FAILED", json.dumps(found)[:4000]
        return bool(found["status"] == "RUNNING")

    def _start(self) -> "subprocess.Popen[bytes]":
        params = {key: value for group in self._groups.values() for key, value in group["rayStartParams"].items()}
        params |= self._own_params()
        flags = [f"--{key}" if value == "true" else f"--{key}={value}" for key, value in params.items()]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environ = {"PATH": path, "PYTHONPATH": str(ROOT), **self._node.environ}
        environ |= {"ROUNDHOUSE_SERVER__HOST": "127.0.0.1", "ROUNDHOUSE_SERVER__PORT": str(self.ports[8080])}
        environ |= {"ROUNDHOUSE_SERVER__GRPC_PORT": str(self.ports[8081])}
        # As KubeRay with `authOptions`, and as docker/ray.Dockerfile.
        environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
        # It would start as many workers before they are needed as the machine has CPUs.
        environ |= {"RAY_enable_worker_prestart": "0"}
        # Ray gives its workers the niceness 15: they would starve beside other processes of a busy machine.
        environ |= {"RAY_worker_niceness": "0"}
        return subprocess.Popen(
            ["/bin/bash", "-c", "--", "ulimit -n 65536; exec ray start --head " + " ".join(flags)],
            cwd=self._node.home,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _own_params(self) -> dict[str, str]:
        """Return the parameters that differ on a machine of tests: addresses, ports and the folder of the session."""
        own = {"node-ip-address": _NODE_IP, "dashboard-host": "127.0.0.1", "temp-dir": self._session.name}
        own |= {name: free_port() for name in ("port", "ray-client-server-port", "metrics-export-port")}
        return own | {
            "dashboard-port": str(self.ports[_DASHBOARD]),
            "dashboard-agent-listen-port": str(self.ports[_AGENT]),
        }

    def _end(self) -> None:
        """Kill all processes: Ray would give them more than a minute."""
        self._dashboard.close()
        if self._process is not None:
            for each in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            self._process.kill()
            self._process.wait(WAIT_S)
        self._session.cleanup()
