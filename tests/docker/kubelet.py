"""Start the container of a pod as a kubelet does: its command, environment and files, its probes and its stop.

Paths of the container are mapped to a folder of the test, and its ports to free ones of 127.0.0.1. The image is this
repository: the command and the variables of the Dockerfile, and the embedded models.
"""

import base64
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.docker.files import DOCKER
from tests.e2e.server import ROOT, Fork, RunningServer, free_port, wait_until

POD_IP = "10.244.1.17"
_STAGE = (DOCKER / "Dockerfile").read_text(encoding="utf-8").partition(" AS cpu\n")[2].partition("\nFROM ")[0]
_IMAGE_FILES = {
    "/opt/roundhouse/embedded": ROOT / "app/embedded",
    "/opt/roundhouse/healthcheck.py": DOCKER / "healthcheck.py",
}

Files = Mapping[str, bytes]
"""Content of each file of a ConfigMap or Secret, by its name."""


def image_environ() -> dict[str, str]:
    """Return the variables of the server that the image sets."""
    return dict(re.findall(r"\b(ROUNDHOUSE_\w+)=(\S+)", _STAGE))


def data_of(objects: Sequence[dict[str, Any]], more: Mapping[str, Files]) -> dict[str, Files]:
    """Return the content of the ConfigMaps and Secrets among the objects, and of others, by their names."""
    found: dict[str, Files] = dict(more)
    for each in objects:
        if each["kind"] == "ConfigMap":
            found[each["metadata"]["name"]] = {name: text.encode() for name, text in each["data"].items()}
        if each["kind"] == "Secret":
            found[each["metadata"]["name"]] = {name: base64.b64decode(text) for name, text in each["data"].items()}
    return found


class Kubelet:
    """Runs the only container of a pod in a folder of the test."""

    def __init__(self, pod: Mapping[str, Any], data: Mapping[str, Files], folder: Path, claims: Sequence[str]) -> None:
        """`pod`: the spec of the pod. `data`: see `data_of`. `claims`: volumes that a StatefulSet adds to the pod."""
        (self._container,) = pod["containers"]
        self._pod, self._data, self._folder = pod, data, folder
        self.ports = {8080: int(free_port()), 8081: int(free_port())}
        self._paths = {path: str(there) for path, there in _IMAGE_FILES.items()}
        self._volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
        self._volumes |= {name: {"name": name, "emptyDir": {}} for name in claims}
        self.home = folder / "app"
        self.home.mkdir()
        for mount in sorted(self._container["volumeMounts"], key=lambda mount: "subPath" in mount):
            self._mount(mount)
        self.server: RunningServer | None = None

    def _mount(self, mount: Mapping[str, Any]) -> None:
        """Make the files of a volume and map its path. Files below a `subPath` are copied: they do not change."""
        volume = self._volumes[mount["name"]]
        source = volume.get("configMap", {}).get("name") or volume.get("secret", {}).get("secretName")
        place = self.place(mount["mountPath"])
        if "subPath" in mount:
            place.write_text(self.inside(self._data[source][mount["subPath"]].decode()), encoding="utf-8")
            return
        self._paths[mount["mountPath"]] = str(place)
        place.mkdir(parents=True, exist_ok=True)
        if source is not None:
            self.write_volume(mount["mountPath"], self._data[source])

    def place(self, path: str) -> Path:
        """Return the place of a path of the container."""
        return self._folder / path.lstrip("/")

    def write_volume(self, path: str, files: Files) -> None:
        """Write a ConfigMap or Secret as a kubelet does: links to files in a folder that is replaced as a whole."""
        place = self.place(path)
        version = place / f"..{time.time_ns()}"
        version.mkdir()
        for name, content in files.items():
            (version / name).write_bytes(content)
            (version / name).chmod(0o440)
            if not (place / name).is_symlink():
                (place / name).symlink_to(f"..data/{name}")
        link = place / "..data_tmp"
        link.symlink_to(version.name)
        link.rename(place / "..data")

    def inside(self, text: str) -> str:
        """Return a text in which paths of the container are those of the test."""
        known = sorted(self._paths, key=len, reverse=True)
        pattern = r"(?<![\w/.])(?:" + "|".join(map(re.escape, known)) + r")(?![\w.-])"
        return re.sub(pattern, lambda found: self._paths[found[0]], text)

    @property
    def environ(self) -> dict[str, str]:
        """The variables of the container, with mapped paths, before its address and ports are replaced."""
        found = image_environ()
        for each in self._container["env"]:
            reference = each.get("valueFrom", {}).get("secretKeyRef")
            value = each.get("value") if reference is None else self._data[reference["name"]][reference["key"]].decode()
            assert value is not None, each
            found[each["name"]] = self.inside(value)
        return found

    def check(self) -> subprocess.CompletedProcess[str]:
        """Run `roundhouse check` with the unchanged address and ports: a server beyond loopback needs keys."""
        environ = self.environ
        file = environ.get("ROUNDHOUSE_CONFIG", str(self.home / "config.toml"))
        return self._run([sys.executable, "-m", "app", "check", file], environ)

    def _run(self, command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        variables = {"PYTHONPATH": str(ROOT), "PATH": str(Path(sys.executable).parent), **environ}
        return subprocess.run(
            command, cwd=self.home, env=variables, capture_output=True, text=True, timeout=120, check=False
        )

    @contextmanager
    def running(self, needs_torch: bool = False, is_fork: bool = True) -> Iterator[RunningServer]:
        """Run the container until the block ends; its start-up and readiness probes have succeeded then."""
        words = self._container.get("command", ["roundhouse"]) + self._container.get("args", ["serve"])
        assert words[:2] == ["roundhouse", "serve"]
        fork = Fork(needs_torch) if is_fork else None
        with RunningServer([self.inside(word) for word in words[2:]], self._own_environ(), self.home, fork) as server:
            self.server = server
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                wait_until(lambda kind=kind: self.probe(kind))  # type: ignore[misc]
            yield server

    def _own_environ(self) -> dict[str, str]:
        environ = self.environ | {"ROUNDHOUSE_SERVER__HOST": "127.0.0.1", "TMPDIR": str(self.place("/tmp"))}
        for name in ("ROUNDHOUSE_SERVER__PORT", "ROUNDHOUSE_SERVER__GRPC_PORT"):
            port = int(environ[name])
            environ[name] = str(self.ports.get(port, port))
        return environ

    def probe(self, kind: str) -> bool:
        """Return whether one probe succeeds now. A container without this probe counts as well."""
        probe = self._container.get(kind)
        if probe is None:
            return kind == "startupProbe"
        port = self._port(probe)
        if "exec" in probe:
            command = [sys.executable if word == "python" else self.inside(word) for word in probe["exec"]["command"]]
            return self._run(command, self._own_environ()).returncode == 0
        with suppress(OSError, HTTPException, grpc.RpcError):
            if "tcpSocket" in probe:
                socket.create_connection(("127.0.0.1", port), timeout=probe["timeoutSeconds"]).close()
                return True
            return self._probe_grpc(probe, port) if "grpc" in probe else self._probe_http(probe, port)
        return False

    def _port(self, probe: Mapping[str, Any]) -> int:
        """Return the free port of a probe's port, which is a number or a name."""
        action = next((probe[name] for name in ("httpGet", "tcpSocket", "grpc") if name in probe), {"port": 8080})
        named = {each.get("name"): each["containerPort"] for each in self._container["ports"]}
        return self.ports[named.get(action["port"], action["port"])]

    def _probe_http(self, probe: Mapping[str, Any], port: int) -> bool:
        """Send the request of a kubelet: the Host header is the address of the pod."""
        action, timeout_s = probe["httpGet"], probe["timeoutSeconds"]
        connection = HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        if action.get("scheme") == "HTTPS":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            connection = HTTPSConnection("127.0.0.1", port, timeout=timeout_s, context=context)
        headers = {"host": f"{POD_IP}:8080", "user-agent": "kube-probe/1.32", "accept": "*/*", "connection": "close"}
        try:
            connection.request("GET", action["path"], headers=headers)
            return 200 <= connection.getresponse().status < 400
        finally:
            connection.close()

    def _probe_grpc(self, probe: Mapping[str, Any], port: int) -> bool:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            request = health_pb2.HealthCheckRequest(service=probe["grpc"].get("service", ""))
            status = health_pb2_grpc.HealthStub(channel).Check(request, timeout=probe["timeoutSeconds"]).status
            return bool(status == health_pb2.HealthCheckResponse.SERVING)

    def stop(self, body: Mapping[str, Any], path: str, key: str) -> None:
        """Stop the container while a request is half sent: it is answered, and the stop ends in the grace period.

        The sleep of the hook `preStop` takes its part of the grace period; the server does not see it.
        """
        assert self.server is not None
        grace_s = self._pod.get("terminationGracePeriodSeconds", 30)
        hook = self._container.get("lifecycle", {}).get("preStop", {"sleep": {"seconds": 0}})
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: prod\r\nx-api-key: {key}\r\nexpect: 100-continue\r\n"
        head += f"content-length: {len(content)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.ports[8080]), timeout=120) as half_sent:
            half_sent.sendall(head.encode())
            answers = half_sent.makefile("rb")
            assert answers.readline() == b"HTTP/1.1 100 Continue\r\n"
            assert answers.readline() == b"\r\n"
            self.server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not self.probe("readinessProbe"))
            half_sent.sendall(content)
            answer = answers.read()
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        self.server.wait_stopped(0, grace_s - hook["sleep"]["seconds"])
