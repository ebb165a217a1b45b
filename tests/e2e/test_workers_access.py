"""TLS, keys and limits of a server with two workers: each request on a connection of its own."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from app.auth.principal import Scope
from tests.e2e.server import wait_until
from tests.e2e.tls_server import TlsServer, tls_serving
from tests.support.certificates import server_pair
from tests.support.keyring import MadeKey, make_key, write_keys

pytestmark = pytest.mark.extended

CONNECTIONS = 16
PER_MINUTE = 200
BURST = PER_MINUTE // 10
OPERATOR = make_key("ops")
FREE, COUNTED = make_key("free", Scope.INFER), make_key("counted", Scope.INFER)
AUTH = f"""
[auth]
mode = "required"
[[auth.tenants]]
name = "ops"
operator = true
[[auth.tenants]]
name = "free"
[[auth.tenants]]
name = "counted"
requests_per_minute = {PER_MINUTE}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    folder = tmp_path_factory.mktemp("access")
    write_keys(folder / "keys.toml", OPERATOR, FREE, COUNTED)
    with tls_serving(folder, more=AUTH, workers=2) as running:
        running.server.wait_for_log("model ready")
        yield running
        running.server.check_log()


def statuses(server: TlsServer, key: MadeKey | None, count: int = CONNECTIONS) -> Counter[int]:
    """Send a request on each of `count` connections; return how often each status came."""
    found: Counter[int] = Counter()
    headers = {} if key is None else key.headers
    for _ in range(count):
        with server.client() as client:
            answer = client.post("/models/echo/infer", json={"input_data": [1.0]}, headers=headers)
            found[answer.status_code] += 1
    return found


def test_all_workers_check_keys(server: TlsServer) -> None:
    assert statuses(server, FREE) == {200: CONNECTIONS}
    assert statuses(server, None) == {401: CONNECTIONS}
    with server.client() as client:
        assert client.get("/models", headers=OPERATOR.headers).status_code == 200
        assert client.get("/models", headers=FREE.headers).status_code == 403


def test_quota_holds_over_all_workers(server: TlsServer) -> None:
    started_s = time.monotonic()
    found = statuses(server, COUNTED, 2 * BURST + CONNECTIONS)
    added = (time.monotonic() - started_s) / 60 * PER_MINUTE
    assert set(found) == {200, 429}
    assert BURST <= found[200] <= BURST + added + 1, found


def test_all_workers_read_changed_keys(server: TlsServer) -> None:
    added = make_key("free", Scope.INFER)
    write_keys(server.folder / "keys.toml", OPERATOR, added)
    wait_until(lambda: statuses(server, added) == {200: CONNECTIONS})
    wait_until(lambda: statuses(server, FREE) == {401: CONNECTIONS})


def test_all_workers_read_changed_certificates(server: TlsServer) -> None:
    before = server.serial()
    server_pair(server.authority).write(server.folder, "server")
    wait_until(lambda: before not in {server.serial() for _ in range(CONNECTIONS)})
