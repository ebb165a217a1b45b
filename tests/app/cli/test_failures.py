"""The reasons that commands give for servers and files that they cannot use."""

import http.client
import socket
import ssl
import urllib.error
from pathlib import Path

import pytest

from app.cli.failures import grpc_reason_of, is_lasting, reason_of, refused_key, unusable


def certificate_error(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


def tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] (_ssl.c:1006)")
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (certificate_error(18, "self-signed certificate"), "not trusted (self-signed certificate); name its authority"),
        (certificate_error(62, "Hostname mismatch."), "another name (Hostname mismatch); call the server by a name"),
        (certificate_error(10, "certificate has expired"), "expired; renew it"),
        (tls_error("WRONG_VERSION_NUMBER"), "plain HTTP; say http://"),
        (tls_error("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "a certificate of the client; name yours with --cert"),
        (tls_error("UNSUPPORTED_PROTOCOL"), "an error of TLS, unsupported protocol"),
        (ConnectionRefusedError(111, "Connection refused"), "nothing listens there; start the server"),
        (socket.gaierror(-2, "Name or service not known"), "a host name that is not known; name another one"),
        (TimeoutError(), "no answer in time"),
        (http.client.RemoteDisconnected("Remote end closed"), "closed without an answer"),
        (http.client.BadStatusLine("\0\0\x1e\x04"), "not HTTP/1.1, perhaps of gRPC; name the port of HTTP"),
        (OSError(113, "No route to host"), "No route to host"),
        (ValueError("a\x1b[31mb"), "a?[31mb"),
    ],
)
def test_reason_is_plain_and_has_remedy(error: Exception, reason: str) -> None:
    for each in (error, urllib.error.URLError(error)):
        text = reason_of(each)
        assert reason in text
        assert "urlopen" not in text
        assert "CERTIFICATE_VERIFY_FAILED" not in text


def test_only_lasting_reasons_end_retries() -> None:
    assert is_lasting(tls_error("WRONG_VERSION_NUMBER"))
    assert is_lasting(socket.gaierror(-2, "Name or service not known"))
    assert is_lasting(http.client.BadStatusLine("x"))
    assert not is_lasting(http.client.RemoteDisconnected("x"))
    assert not is_lasting(ConnectionRefusedError())


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ("failed to connect to all addresses; last error: Connection refused", "nothing listens there"),
        ("Failed parsing HTTP/2 (Trying to connect an http1.x server)", "a port of HTTP/1.1"),
        ("Tls handshake failed: CERTIFICATE_VERIFY_FAILED", "--cacert"),
        ("something else", "something else"),
    ],
)
def test_grpc_reason_is_plain(details: str, reason: str) -> None:
    assert reason in grpc_reason_of(details)


def test_unusable_file_is_named_by_its_fault(tmp_path: Path) -> None:
    def fault(path: Path) -> str:
        try:
            path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            return unusable(path, error)
        raise AssertionError("the file can be read")

    (tmp_path / "bytes").write_bytes(b"\xff")
    assert fault(tmp_path / "none") == f"{tmp_path / 'none'}, which does not exist"
    assert fault(tmp_path) == f"the folder {tmp_path}"
    assert fault(tmp_path / "bytes") == f"{tmp_path / 'bytes'}, which is not UTF-8"
    assert unusable("a", PermissionError(13, "Permission denied")) == "a, which may not be read"
    assert unusable("a", OSError(5, "Input/output error")) == "a (Input/output error)"


def test_refused_key_names_options() -> None:
    assert refused_key("key: expected a key, got none") == (
        "--api-key: expected a key, got none, by --api-key or ROUNDHOUSE_API_KEY"
    )
