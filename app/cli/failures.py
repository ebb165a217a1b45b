"""Say why a server did not answer, or why a file cannot be read, and how to correct it. For every command."""

import http.client
import os
import socket
import ssl
import urllib.error

TRUST = "name its authority with --cacert"
_REFUSED = "no connection: nothing listens there; start the server, or name another address"
_UNKNOWN_HOST = "a host name that is not known; name another one"
_PLAIN = "plain HTTP; say http://, or name the port of https"
_OTHER_PROTOCOL = "an answer that is not HTTP/1.1, perhaps of gRPC; name the port of HTTP"
_OTHER_NAME_CODES = (62, 64)
"""OpenSSL's codes for a certificate of another host name or address."""
_EXPIRED_CODE = 10
_MAX_CHARACTERS = 300


def reason_of(error: BaseException) -> str:
    """Return what came in place of an answer, with the remedy where one is known."""
    reason: object = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return _certificate(reason.verify_code, reason.verify_message)
    if isinstance(reason, ssl.SSLError):
        return _tls(reason)
    if isinstance(reason, ConnectionRefusedError):
        return _REFUSED
    if isinstance(reason, socket.gaierror):
        return _UNKNOWN_HOST
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, http.client.RemoteDisconnected | ConnectionError):
        return "a connection that was closed without an answer"
    if isinstance(reason, http.client.BadStatusLine):
        return _OTHER_PROTOCOL
    text = str(getattr(reason, "strerror", None) or reason or type(reason).__name__)
    return printable(text, _MAX_CHARACTERS)


def is_lasting(error: BaseException) -> bool:
    """Whether the next request would fail too: a retry does not help."""
    return isinstance(error, ssl.SSLError | socket.gaierror | http.client.InvalidURL) or (
        isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError)
    )


def grpc_reason_of(details: str) -> str:
    """Return the same of the details that gRPC gives for a connection that was not made."""
    for sign, reason in (
        ("Connection refused", _REFUSED),
        ("http1.x server", "a port of HTTP/1.1"),
        ("WRONG_VERSION_NUMBER", _PLAIN),
        ("CERTIFICATE_VERIFY_FAILED", f"a certificate that is not trusted; {TRUST}"),
        ("Domain name not found", _UNKNOWN_HOST),
    ):
        if sign in details:
            return reason
    return printable(details, _MAX_CHARACTERS)


def refused_key(message: str) -> str:
    """Return the message of a server that refuses the key of a command, with the options that give another."""
    return f"--api-key: {message.removeprefix('key: ')}, by --api-key or ROUNDHOUSE_API_KEY"


def unusable(path: str | os.PathLike[str], error: Exception) -> str:
    """Return how a message names a file that cannot be read: missing, a folder, or the reason of the system."""
    match error:
        case FileNotFoundError():
            return f"{path}, which does not exist"
        case IsADirectoryError():
            return f"the folder {path}"
        case PermissionError():
            return f"{path}, which may not be read"
        case UnicodeDecodeError():
            return f"{path}, which is not UTF-8"
    return f"{path} ({getattr(error, 'strerror', None) or error})"


def printable(text: str, limit: int = 80) -> str:
    """Cut a text of the server and remove characters that would control the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text[:limit])


def _certificate(code: int, message: str) -> str:
    if code in _OTHER_NAME_CODES:
        return f"a certificate for another name ({message.rstrip('.')}); call the server by a name of its certificate"
    if code == _EXPIRED_CODE:
        return "a certificate that has expired; renew it on the server"
    return f"a certificate that is not trusted ({message}); {TRUST}"


def _tls(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return _PLAIN
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return "a demand for a certificate of the client; name yours with --cert and --cert-key"
    return f"an error of TLS, {reason.lower().replace('_', ' ') or printable(str(error))}"
