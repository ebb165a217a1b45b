"""Send one JSON request of the command line to a running server."""

import http.client
import json
import re
import socket
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

# Long enough for any model. A server that is down is reported at once.
_TIMEOUT_S = 600
_HEADER_VALUE = re.compile("[!-~]+")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """PEM files. `authorities`: that the server is checked with, in place of the system's. `certificate`: of the
    client; `key`: None if the certificate's file has it.
    """

    authorities: str | None = None
    certificate: str | None = None
    key: str | None = None


def call(
    url: str,
    method: str,
    path: str,
    body: object = None,
    api_key: str = "",
    is_signed: bool = False,
    tls: TlsOptions | None = None,
) -> tuple[int, Any]:
    """Return the status and the decoded response; status 0 with an error in the usual form if no server answers.

    `api_key`: sent as a bearer token, unless it is ""; with `is_signed` it signs the request and is not sent.
    `tls`: for https; None: the authorities of the system.
    """
    if not url.startswith(("http://", "https://")):
        return 0, _error("unreachable", f'--url: expected an http:// or https:// address, got "{url}"')
    address = url.rstrip("/") + quote(path)
    data = b"" if body is None else json.dumps(body).encode()
    try:
        headers = credentials(method, address, data, api_key, is_signed)
    except ValueError as error:
        return 0, _error("invalid_key", f"--api-key: {error}")
    try:
        request = urllib.request.Request(  # noqa: S310 - checked above
            address,
            data=data or None,
            headers={"content-type": "application/json"},
            method=method,
        )
        for name, value in headers.items():
            # Not sent to the target of a redirect.
            request.add_unredirected_header(name, value)
        context = tls_context(tls) if tls is not None and url.startswith("https://") else None
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as response:  # noqa: S310
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _decode(error.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        return 0, _error("unreachable", f"--url: expected a Roundhouse server at {url}, got {_reason_of(error)}")


def credentials(method: str, url: str, body: bytes, api_key: str, is_signed: bool) -> dict[str, str]:
    """Return the headers that authenticate a request. Raises ValueError for a key that cannot be sent."""
    if is_signed:
        from app.cli.signing import signature_headers

        return signature_headers(api_key, method, url, body)
    if api_key and not _HEADER_VALUE.fullmatch(api_key):
        raise ValueError("expected visible ASCII characters, got others; copy it again")
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


def _reason_of(error: Exception) -> str:
    """Return why no server answered, with the remedy where there is one."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"a certificate that is not trusted ({reason.verify_message}); name its authority with --cacert"
    if isinstance(reason, ConnectionRefusedError):
        return "no connection: nothing listens there; start the server, or name another address"
    if isinstance(reason, socket.gaierror):
        return "a host name that is not known; name another one"
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    return str(reason)


def tls_context(tls: TlsOptions) -> ssl.SSLContext:
    """Raises OSError for a file that cannot be read or used."""
    context = ssl.create_default_context(cafile=tls.authorities)
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return context


def _decode(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return _error("not_roundhouse", content[:500].decode("utf-8", "replace"))


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}
