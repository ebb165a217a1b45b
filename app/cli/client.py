"""Send one JSON request of the command line to a running server, signed if that is wanted (RFC 9421)."""

import hmac
import http.client
import json
import re
import secrets
import ssl
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from app.cli.failures import reason_of, refused_key, unusable

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
        return 0, failure("unreachable", f'--url: expected an http:// or https:// address, got "{url}"')
    address = url.rstrip("/") + quote(path)
    data = b"" if body is None else json.dumps(body).encode()
    try:
        context = tls_context(tls) if tls is not None and url.startswith("https://") else None
    except WrongPemFile as error:
        return 0, failure("invalid_file", str(error))
    try:
        headers = credentials(method, address, data, api_key, is_signed)
    except ValueError as error:
        return 0, failure("invalid_key", f"--api-key: {error}")
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
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as response:  # noqa: S310
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _decode(error.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        return 0, failure("unreachable", f"--url: expected a Roundhouse server at {url}, got {reason_of(error)}")


def credentials(method: str, url: str, body: bytes, api_key: str, is_signed: bool) -> dict[str, str]:
    """Return the headers that authenticate a request. Raises ValueError for a key that cannot be sent."""
    if is_signed:
        return _signature_headers(api_key, method, url, body)
    if api_key and not _HEADER_VALUE.fullmatch(api_key):
        raise ValueError("expected visible ASCII characters, got others; copy it again")
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


class WrongPemFile(ValueError):
    """A file of TLS cannot be used; the message has its option."""


def tls_context(tls: TlsOptions) -> ssl.SSLContext:
    """Raises WrongPemFile for a file that cannot be read or used."""
    for option, file in (("--cacert", tls.authorities), ("--cert", tls.certificate), ("--cert-key", tls.key)):
        if file is not None:
            _check_readable(option, file)
    try:
        context = ssl.create_default_context(cafile=tls.authorities)
    except (OSError, ValueError) as error:
        got = f"{tls.authorities} without one; name another file"
        raise WrongPemFile(f"--cacert: expected certificates in PEM, got {got}") from error
    if tls.certificate is not None:
        try:
            context.load_cert_chain(tls.certificate, tls.key)
        except (OSError, ValueError) as error:
            files = tls.certificate if tls.key is None else f"{tls.certificate} and {tls.key}"
            expected = "a certificate and its key in PEM"
            raise WrongPemFile(f"--cert: expected {expected}, got {files}; name the key with --cert-key") from error
    return context


def _check_readable(option: str, file: str) -> None:
    try:
        with Path(file).open("rb"):
            pass
    except (OSError, ValueError) as error:
        raise WrongPemFile(f"{option}: expected a PEM file, got {unusable(file, error)}; correct the path") from error


def print_failure(response: Any, as_json: bool) -> int:
    """Print an error of `call`: its message to standard error, or with `as_json` all of it to standard output.

    Returns the exit status, 1.
    """
    if as_json:
        print(json.dumps(response, indent=2))
        return 1
    error = response.get("error") if isinstance(response, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    if not isinstance(error, dict) or not isinstance(message, str):
        message = json.dumps(response)
    elif error.get("code") == "unauthenticated":
        message = refused_key(message)
    print(message, file=sys.stderr)
    return 1


def failure(code: str, message: str) -> dict[str, Any]:
    """Return an error of this side in the usual form."""
    return {"error": {"code": code, "message": message}}


def _decode(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return failure("not_roundhouse", content[:500].decode("utf-8", "replace").strip())


def _signature_headers(api_key: str, method: str, url: str, body: bytes) -> dict[str, str]:
    """Return the headers that sign one request (docs/security.md). Raises ValueError for a key of another form."""
    from app.auth.keys import ENVIRONMENT_ID, hash_secret, split_key

    known = split_key(api_key.encode())
    if known is None or known[0] == ENVIRONMENT_ID:
        raise ValueError("expected rh_<id>_<secret>, got another text; sign with a key of `roundhouse keys create`")
    key_id, secret = known
    parts = urlsplit(url)
    digest = f"sha-256=:{b64encode(sha256(body).digest()).decode()}:"
    parameters = (
        '("@method" "@path" "@query" "content-digest")'
        f';created={int(time.time())};keyid="{key_id}";nonce="{secrets.token_urlsafe(16)}"'
    )
    base = (
        f'"@method": {method}\n"@path": {parts.path or "/"}\n"@query": ?{parts.query}\n"content-digest": {digest}\n'
        f'"@signature-params": {parameters}'
    )
    mac = hmac.digest(hash_secret(secret), base.encode(), "sha256")
    return {
        "content-digest": digest,
        "signature-input": f"sig={parameters}",
        "signature": f"sig=:{b64encode(mac).decode()}:",
    }
