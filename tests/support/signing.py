"""Sign requests as a client does, without the server's code."""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence

REQUIRED = ("@method", "@path", "@query", "content-digest")


def content_digest(body: bytes, algorithm: str = "sha-256") -> str:
    """Return the content-digest of a body."""
    digest = hashlib.new(algorithm.replace("-", ""), body).digest()
    return f"{algorithm}=:{base64.b64encode(digest).decode()}:"


def signed_headers(
    key: str,
    method: str,
    target: str,
    body: bytes = b"",
    *,
    created: int | None = None,
    nonce: str | None = None,
    further: Sequence[tuple[str, str]] = (),
    parameters: str = ';alg="hmac-sha256"',
    algorithm: str = "sha-256",
) -> dict[str, str]:
    """Return the headers that sign a request with `key` (`rh_<id>_<secret>`).

    `target`: path and query. `further`: more covered headers. `parameters`: behind created, keyid and nonce.
    """
    _, key_id, secret = key.split("_", 2)
    path, _, query = target.partition("?")
    digest = content_digest(body, algorithm)
    covered = [
        ("@method", method),
        ("@path", path),
        ("@query", f"?{query}"),
        ("content-digest", digest),
        *further,
    ]
    names = " ".join(f'"{name}"' for name, _ in covered)
    created = int(time.time()) if created is None else created
    nonce = secrets.token_urlsafe(16) if nonce is None else nonce
    signed = f'({names});created={created};keyid="{key_id}";nonce="{nonce}"{parameters}'
    base = "".join(f'"{name}": {value}\n' for name, value in covered) + f'"@signature-params": {signed}'
    mac = hmac.digest(hashlib.sha256(secret.encode()).digest(), base.encode(), "sha256")
    return {
        "content-digest": digest,
        "signature-input": f"sig={signed}",
        "signature": f"sig=:{base64.b64encode(mac).decode()}:",
    }
