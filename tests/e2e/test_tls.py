"""TLS over real sockets: curl, httpx and grpcio talk to a real server, which reads changed files again."""

import hashlib
import http.client
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.e2e.configs import onnx_entries
from tests.e2e.server import GRPC_PORT, ROOT, Fork, RunningServer, free_port, serving, wait_until
from tests.support.certificates import Authority, Pair, server_pair
from tests.support.models import onnx_graphs

_HEALTH = "/inference.GRPCInferenceService/ServerLive"


@dataclass(frozen=True, slots=True)
class TlsServer:
    """A server with TLS, the folder of its files, and the authority that clients trust."""

    server: RunningServer
    folder: Path
    authority: Authority

    @property
    def url(self) -> str:
        return f"https://localhost:{self.server.port}"

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """Return what a client checks the server with, and the certificate that it shows."""
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        if pair is not None:
            context.load_cert_chain(*pair.write(self.folder, "client"))
        return context

    def client(self, pair: Pair | None = None) -> httpx.Client:
        return httpx.Client(base_url=self.url, verify=self.context(pair), trust_env=False, timeout=120)

    def curl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        ca = self.folder / "ca.pem"
        ca.write_bytes(self.authority.pem)
        command = ["curl", "-sS", "--cacert", str(ca), *arguments, f"{self.url}/health/live"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    @contextmanager
    def channel(self, pair: Pair | None = None) -> Iterator[grpc.Channel]:
        own = () if pair is None else (pair.key, pair.certificate)
        credentials = grpc.ssl_channel_credentials(self.authority.pem, *own)
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(f"localhost:{self.server.grpc_port}", credentials, options) as channel:
            yield channel

    def call(self, pair: Pair | None = None, *metadata: tuple[str, str]) -> bytes:
        """Call ServerLive on a connection of its own. Raises grpc.RpcError."""
        with self.channel(pair) as channel:
            call: Any = channel.unary_unary(_HEALTH)
            answer: bytes = call(b"", timeout=60, metadata=metadata)
            return answer

    def serial(self) -> bytes:
        """Return the certificate that a new connection gets."""
        return ssl.get_server_certificate(("localhost", self.server.port)).encode()

    def reloads(self, outcome: str, pair: Pair | None = None) -> int:
        with self.client(pair) as client:
            page = client.get("/metrics").text
        wanted = f'roundhouse_tls_reloads_total{{outcome="{outcome}"}} '
        return int(float(next(line for line in page.splitlines() if line.startswith(wanted)).split()[-1]))


@contextmanager
def tls_serving(
    folder: Path, client_ca: Authority | None = None, more: str = "", authority: Authority | None = None
) -> Iterator[TlsServer]:
    authority = authority or Authority()
    server_pair(authority).write(folder, "server")
    lines = [f'tls_certificate = "{folder}/server.pem"', f'tls_key = "{folder}/server.key"']
    if client_ca is not None:
        (folder / "clients.pem").write_bytes(client_ca.pem)
        lines.append(f'tls_client_ca = "{folder}/clients.pem"')
    config = (
        "[server]\n" + "\n".join(lines) + "\n" + onnx_entries(folder, {"echo": onnx_graphs.identity("float32", ("n",))})
    )
    with serving(folder, config + more, {GRPC_PORT: free_port()}) as server:
        yield TlsServer(server, folder, authority)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    """A server without client certificates. Tests do not change its files."""
    with tls_serving(tmp_path_factory.mktemp("tls")) as server:
        yield server


def test_curl_gets_answer(plain: TlsServer) -> None:
    done = plain.curl("--http1.1", "-w", "%{http_code} %{http_version}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("200 1.1")


def test_old_version_is_refused(plain: TlsServer) -> None:
    # Security level 0: curl itself would refuse to offer it.
    done = plain.curl("--tls-max", "1.1", "--tlsv1.1", "--ciphers", "DEFAULT@SECLEVEL=0")
    assert done.returncode == 35
    assert "alert protocol version" in done.stderr


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_current_version_is_served(plain: TlsServer, version: str) -> None:
    done = plain.curl(f"--tlsv{version}", "--tls-max", version)
    assert done.returncode == 0, done.stderr


def test_client_without_server_name_is_served(plain: TlsServer) -> None:
    context = plain.context()
    context.check_hostname = False
    connection = http.client.HTTPSConnection("127.0.0.1", plain.server.port, context=context, timeout=60)
    connection.request("GET", "/health/live")
    assert connection.getresponse().status == 200
    connection.close()


def test_unknown_authority_is_refused_by_clients(plain: TlsServer) -> None:
    foreign = ssl.create_default_context(cadata=Authority().pem.decode())
    with httpx.Client(verify=foreign, trust_env=False) as client, pytest.raises(httpx.ConnectError, match="verify"):
        client.get(plain.url)


def test_plain_http_is_told_to_use_tls(plain: TlsServer) -> None:
    answer = httpx.get(f"http://localhost:{plain.server.port}/health/live", trust_env=False)
    assert answer.status_code == 400
    assert "https" in answer.text


def test_grpc_call_is_answered(plain: TlsServer) -> None:
    assert plain.call() == b"\x08\x01"


def test_triton_client_is_answered(plain: TlsServer) -> None:
    from tritonclient.grpc import InferenceServerClient

    ca = plain.folder / "ca.pem"
    ca.write_bytes(plain.authority.pem)
    address = f"localhost:{plain.server.grpc_port}"
    client = InferenceServerClient(address, ssl=True, root_certificates=str(ca))
    assert client.is_server_live()
    client.close()


@pytest.mark.parametrize("has_client_ca", [False, True], ids=["server only", "client certificates"])
def test_health_check_of_container_uses_tls(tmp_path: Path, has_client_ca: bool) -> None:
    authority = Authority()
    with tls_serving(tmp_path, authority if has_client_ca else None, authority=authority) as server:
        environ = {
            "ROUNDHOUSE_SERVER__PORT": str(server.server.port),
            "ROUNDHOUSE_SERVER__TLS_CERTIFICATE": f"{tmp_path}/server.pem",
            "ROUNDHOUSE_SERVER__TLS_KEY": f"{tmp_path}/server.key",
        }
        if has_client_ca:
            environ["ROUNDHOUSE_SERVER__TLS_CLIENT_CA"] = f"{tmp_path}/clients.pem"
        command = [sys.executable, "-I", "docker/healthcheck.py"]

        def status() -> int:
            return subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, check=False).returncode

        wait_until(lambda: status() == 0)


def test_expiry_is_reported(plain: TlsServer) -> None:
    with plain.client() as client:
        assert "roundhouse_tls_certificate_expiry_timestamp_seconds 1" in client.get("/metrics").text


def test_large_bodies_pass_both_ways(plain: TlsServer) -> None:
    values = [float(number % 1000) for number in range(300_000)]
    with plain.client() as client:
        wait_until(lambda: client.get("/health/ready").status_code == 200)
        answer = client.post("/models/echo/infer", json={"input_data": values})
        assert answer.status_code == 200, answer.text
        assert answer.json()["output_data"] == values


def test_new_certificate_is_used_without_lost_requests(tmp_path: Path) -> None:
    with tls_serving(tmp_path) as server:
        stop = threading.Event()
        failures: list[object] = []
        threads = [
            threading.Thread(target=_send_requests, args=(server, stop, failures, kept)) for kept in (True, False)
        ]
        for thread in threads:
            thread.start()
        for _ in range(3):
            pair = server_pair(server.authority)
            # The key first: the server sees a pair that does not fit, or the whole new one.
            pair.write(tmp_path, "server")
            wait_until(lambda pair=pair: server.serial() == pair.certificate)  # type: ignore[misc]
            assert server.call() == b"\x08\x01"
        stop.set()
        for thread in threads:
            thread.join()
        assert not failures
        assert server.reloads("loaded") >= 3


def _send_requests(server: TlsServer, stop: threading.Event, failures: list[object], is_kept: bool) -> None:
    context = server.context()
    headers = {} if is_kept else {"connection": "close"}
    with httpx.Client(base_url=server.url, verify=context, trust_env=False, timeout=120) as client:
        while not stop.is_set():
            try:
                client.get("/health/live", headers=headers).raise_for_status()
            except httpx.HTTPError as error:
                failures.append(error)


def test_half_written_pair_keeps_last_good(tmp_path: Path) -> None:
    with tls_serving(tmp_path) as server:
        before = server.serial()
        new = server_pair(server.authority)
        (tmp_path / "server.pem").write_bytes(new.certificate[:200])
        wait_until(lambda: server.reloads("failed") == 1)
        (tmp_path / "server.pem").write_bytes(new.certificate)
        wait_until(lambda: server.reloads("failed") == 2)
        assert server.serial() == before
        assert server.call() == b"\x08\x01"
        reasons = [
            event["reason"]
            for event in server.server.events("the changed TLS files cannot be used; the last good ones stay")
        ]
        assert "expected the key of" in reasons[-1]
        (tmp_path / "server.key").write_bytes(new.key)
        wait_until(lambda: server.serial() == new.certificate)


def test_client_certificate_is_required(tmp_path: Path) -> None:
    clients = Authority("clients")
    with tls_serving(tmp_path, clients) as server:
        pair = clients.issue("search")
        with server.client(pair) as client:
            assert client.get("/health/live").status_code == 200
        assert server.call(pair) == b"\x08\x01"
        for wrong in (None, Authority("clients").issue("search"), clients.issue("search", days=-1)):
            _assert_refused(server, wrong)


def test_removed_authority_is_refused(tmp_path: Path) -> None:
    old, new = Authority("old"), Authority("new")
    with tls_serving(tmp_path, old) as server:
        kept = server.client(old.issue("search"))
        assert kept.get("/health/live").status_code == 200
        (tmp_path / "clients.pem").write_bytes(new.pem)
        pair = new.issue("search")
        wait_until(lambda: _is_served(server, pair))
        _assert_refused(server, old.issue("search"))
        assert server.call(pair) == b"\x08\x01"
        # An open connection stays.
        assert kept.get("/health/live").status_code == 200
        kept.close()


def _is_served(server: TlsServer, pair: Pair) -> bool:
    try:
        with server.client(pair) as client:
            return client.get("/health/live").status_code == 200
    except httpx.HTTPError:
        return False


def _assert_refused(server: TlsServer, pair: Pair | None) -> None:
    with server.client(pair) as client, pytest.raises(httpx.HTTPError):
        client.get("/health/live")
    with pytest.raises(grpc.RpcError) as refused:
        server.call(pair)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


_TENANTS = """
[auth]
keys_file = "keys.toml"
[[auth.tenants]]
name = "search"
client_certificates = ["search", "spiffe://example.org/search"]
models = ["echo"]
[[auth.tenants]]
name = "chat"
client_certificates = ["chat.example.org"]
models = ["nothing"]
"""


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TlsServer, Authority, str]]:
    """A server whose clients are known by their certificates, their authority, and a key of the tenant `search`."""
    folder = tmp_path_factory.mktemp("tenants")
    clients = Authority("clients")
    create = ["keys", "create", "--tenant", "search", "--scopes", "infer,manage", "--file", f"{folder}/keys.toml"]
    done = subprocess.run([sys.executable, "-m", "app", *create], capture_output=True, text=True, check=True)
    with tls_serving(folder, clients, _TENANTS) as server:
        yield server, clients, next(word for word in done.stdout.split() if word.startswith("rh_"))


@pytest.mark.parametrize("names", [("search",), ("robot", "spiffe://example.org/search")], ids=["subject", "uri"])
def test_certificate_names_tenant(tenants: tuple[TlsServer, Authority, str], names: tuple[str, ...]) -> None:
    server, clients, _ = tenants
    pair = clients.issue(*names)
    with server.client(pair) as client:
        listed = client.get("/models").json()["models"]
        assert [model["name"] for model in listed] == ["echo"]
        assert client.post("/models/echo/unload").status_code == 403
    assert server.call(pair) == b"\x08\x01"


def test_certificate_of_other_tenant_sees_no_model(tenants: tuple[TlsServer, Authority, str]) -> None:
    server, clients, _ = tenants
    with server.client(clients.issue("robot", "chat.example.org")) as client:
        assert client.get("/models").json()["models"] == []


@pytest.mark.parametrize("names", [("robot",), ("search", "chat.example.org")], ids=["no tenant", "two tenants"])
def test_certificate_without_one_tenant_needs_key(
    tenants: tuple[TlsServer, Authority, str], names: tuple[str, ...]
) -> None:
    server, clients, key = tenants
    pair = clients.issue(*names)
    with server.client(pair) as client:
        assert client.get("/health/live").status_code == 200
        assert client.get("/models").status_code == 401
        assert client.post("/models/echo/unload", headers={"x-api-key": key}).status_code == 200
    with pytest.raises(grpc.RpcError) as refused:
        server.call(pair)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_key_of_same_tenant_replaces_certificate(tenants: tuple[TlsServer, Authority, str]) -> None:
    server, clients, key = tenants
    with server.client(clients.issue("search")) as client:
        assert client.post("/models/echo/unload", headers={"x-api-key": key}).status_code == 200


def test_key_of_other_tenant_is_refused(tenants: tuple[TlsServer, Authority, str]) -> None:
    server, clients, key = tenants
    pair = clients.issue("robot", "chat.example.org")
    with server.client(pair) as client:
        answer = client.post("/models/echo/unload", headers={"x-api-key": key})
    assert answer.status_code == 401
    assert "client certificate" in answer.json()["error"]["message"]
    with pytest.raises(grpc.RpcError) as refused:
        server.call(pair, ("x-api-key", key))
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_unknown_grpc_method_is_refused(tenants: tuple[TlsServer, Authority, str]) -> None:
    server, clients, _ = tenants
    with server.channel(clients.issue("search")) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/Nothing")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_command_line_shows_certificate(tenants: tuple[TlsServer, Authority, str]) -> None:
    server, clients, _ = tenants
    certificate, key = clients.issue("search").write(server.folder, "cli")
    (server.folder / "ca.pem").write_bytes(server.authority.pem)
    options = ["--cacert", f"{server.folder}/ca.pem", "--cert", str(certificate), "--cert-key", str(key)]
    command = [sys.executable, "-m", "app", "models", "--url", server.url, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "echo" in done.stdout


def test_self_signed_certificate_is_printed_and_removed(tmp_path: Path) -> None:
    with RunningServer(["--self-signed", "--port", "0"], cwd=tmp_path, fork=Fork(needs_torch=False)) as server:
        printed = dict(line.split(": ", 1) for line in server.lines if line.startswith(("self-signed", "SHA-256")))
        file = Path(printed["self-signed certificate"])
        assert file.stat().st_mode & 0o777 == 0o600
        context = ssl.create_default_context(cafile=file)
        answer = httpx.get(f"https://localhost:{server.port}/health/live", verify=context, trust_env=False)
        assert answer.status_code == 200
        shown = ssl.get_server_certificate(("127.0.0.1", server.port))
        assert (
            hashlib.sha256(ssl.PEM_cert_to_DER_cert(shown)).digest().hex(":").upper() == printed["SHA-256 fingerprint"]
        )
    assert not file.parent.exists()
