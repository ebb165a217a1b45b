"""Client certificates over real sockets: they are required, and name tenants."""

import http.client
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from tests.e2e.server import wait_until
from tests.e2e.tls_server import TlsServer, tls_serving
from tests.support.certificates import Authority, Pair

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


def test_client_certificate_is_required(tmp_path: Path) -> None:
    clients = Authority("clients")
    with tls_serving(tmp_path, clients) as server:
        pair = clients.issue("search")
        with server.client(pair) as client:
            assert client.get("/health/live").status_code == 200
        assert server.call(pair) == b"\x08\x01"
        for wrong in (None, Authority("clients").issue("search"), clients.issue("search", days=-1)):
            _assert_refused(server, wrong)


@pytest.mark.extended
def test_removed_authority_is_refused(tmp_path: Path) -> None:
    old, new = Authority("old"), Authority("new")
    with tls_serving(tmp_path, old) as server:
        pair = new.issue("search")
        with _kept_connection(server, old.issue("search")) as get:
            (tmp_path / "clients.pem").write_bytes(new.pem)
            wait_until(lambda: get() and _is_served(server, pair))
            # An open connection stays.
            assert get()
        _assert_refused(server, old.issue("search"))
        assert server.call(pair) == b"\x08\x01"


@contextmanager
def _kept_connection(server: TlsServer, pair: Pair) -> Iterator[Callable[[], bool]]:
    """Yield a function that sends a request, always over the same connection."""
    connection = http.client.HTTPSConnection("localhost", server.server.port, timeout=120, context=server.context(pair))
    with closing(connection):
        connection.connect()
        # Without it, a new connection would replace one that the server closed.
        connection.auto_open = 0

        def get() -> bool:
            connection.request("GET", "/health/live")
            answer = connection.getresponse()
            answer.read()
            return answer.status == 200

        yield get


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
    for http2 in (False, True):
        with server.client(pair, http2) as client:
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


@pytest.mark.extended
def test_command_line_shows_certificate(tenants: tuple[TlsServer, Authority, str]) -> None:
    server, clients, _ = tenants
    certificate, key = clients.issue("search").write(server.folder, "cli")
    (server.folder / "ca.pem").write_bytes(server.authority.pem)
    options = ["--cacert", f"{server.folder}/ca.pem", "--cert", str(certificate), "--cert-key", str(key)]
    command = [sys.executable, "-m", "app", "models", "--url", server.url, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "echo" in done.stdout
