"""TLS over real sockets: curl, httpx and grpcio talk to a real server, which reads changed files again."""

import hashlib
import http.client
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli.commands import main
from app.config import API_KEY_VARIABLE
from tests.e2e.gates import RunGate
from tests.e2e.server import ROOT, Fork, RunningServer, run_examples, wait_until
from tests.e2e.test_cli import calls
from tests.e2e.tls_server import TlsServer, tls_serving
from tests.support.certificates import Authority, server_pair


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    """A server without client certificates. Tests do not change its files."""
    with tls_serving(tmp_path_factory.mktemp("tls")) as server:
        yield server


def test_curl_gets_answer(plain: TlsServer) -> None:
    done = plain.curl("--http1.1", "-w", "%{http_code} %{http_version}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("200 1.1")


def test_http2_is_chosen_by_alpn(plain: TlsServer) -> None:
    values = [float(number) for number in range(100_000)]
    with plain.client(http2=True) as client, plain.client() as other:
        wait_until(lambda: other.get("/health/ready").status_code == 200)
        request = {"model_name": "echo", "input_data": values}
        answer = client.post("/infer", json=request)
        assert (answer.http_version, answer.json()["output_data"]) == ("HTTP/2", values)
        assert other.get("/health/live").http_version == "HTTP/1.1"


def test_grpc_is_served_beside_https(plain: TlsServer) -> None:
    with plain.channel(port=plain.server.port) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        assert call(b"", timeout=60) == b"\x08\x01"


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


@pytest.mark.extended
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


@pytest.mark.extended
def test_stop_answers_running_request(tmp_path: Path) -> None:
    statuses: list[int] = []

    def send() -> None:
        with server.client() as client:
            statuses.append(client.post("/models/echo/infer", json={"input_data": [1.0]}).status_code)

    with tls_serving(tmp_path, is_gated=True) as server:
        with server.client() as client, socket.create_connection(("localhost", server.server.port)) as silent:
            wait_until(lambda: client.get("/health/ready").status_code == 200)
            with RunGate(tmp_path / "echo").closed():
                sender = threading.Thread(target=send)
                sender.start()
                wait_until(lambda: client.get("/models/echo").json()["requests"]["inflight"] == 1)
                server.server.process.send_signal(signal.SIGTERM)
                silent.settimeout(120)
                assert silent.recv(1) == b""
                assert not statuses
            sender.join()
        server.server.wait_stopped(0)
    assert statuses == [200]


def _send_requests(server: TlsServer, stop: threading.Event, failures: list[object], is_kept: bool) -> None:
    context = server.context()
    headers = {} if is_kept else {"connection": "close"}
    with httpx.Client(base_url=server.url, verify=context, trust_env=False, timeout=120) as client:
        while not stop.is_set():
            try:
                client.get("/health/live", headers=headers).raise_for_status()
            except httpx.HTTPError as error:
                failures.append(error)


@pytest.mark.extended
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
        refused = "the changed TLS files cannot be used; the last good ones stay"
        wait_until(lambda: any("expected the key of" in each["reason"] for each in server.server.events(refused)))
        (tmp_path / "server.key").write_bytes(new.key)
        wait_until(lambda: server.serial() == new.certificate)


def test_commands_explain_certificate_and_scheme(
    plain: TlsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in calls(tmp_path).values():
        assert main([*words, "--url", plain.url]) == 1
        assert "name its authority with --cacert" in capsys.readouterr().err
        assert main([*words, "--url", plain.url.replace("https", "http")]) in (1, 2)
        assert "expected https on this port, got http" in capsys.readouterr().err


@pytest.mark.extended
def test_self_signed_certificate_is_printed_and_removed(tmp_path: Path) -> None:
    environ = {API_KEY_VARIABLE: "a-key-of-the-environment"}
    with RunningServer(["--self-signed", "--port", "0"], environ, tmp_path, Fork(needs_torch=False)) as server:
        [(line, models)] = run_examples(server, **environ)
        assert models["models"] == []
        assert line.endswith(f"https://127.0.0.1:{server.port}/models")
        assert environ[API_KEY_VARIABLE] not in "".join(server.lines)
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
