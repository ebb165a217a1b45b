"""Sign the requests of the command line (RFC 9421), as docs/security.md describes."""

import hmac
import secrets
import time
from base64 import b64encode
from hashlib import sha256
from urllib.parse import urlsplit

from app.auth.keys import ENVIRONMENT_ID, hash_secret, split_key


def signature_headers(api_key: str, method: str, url: str, body: bytes) -> dict[str, str]:
    """Return the headers that sign one request. Raises ValueError for a key of another form."""
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
