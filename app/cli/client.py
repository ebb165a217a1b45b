"""The client of the command line: one JSON call to a running server."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

# Long enough for any model; a server that is down is told at once all the same.
_TIMEOUT_S = 600


def call(url: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
    """The status and the decoded answer; status 0, with an error of the usual form, if no server can be reached."""
    if not url.startswith(("http://", "https://")):
        return 0, {"error": {"code": "unreachable", "message": f'"{url}" is no http:// or https:// address'}}
    try:
        request = urllib.request.Request(  # noqa: S310 - checked above
            url.rstrip("/") + quote(path),
            data=None if body is None else json.dumps(body).encode(),
            headers={"content-type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _decoded(error.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        return 0, {"error": {"code": "unreachable", "message": f"no Roundhouse answers at {url}: {error}"}}


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return {"error": {"code": "not_roundhouse", "message": content[:500].decode("utf-8", "replace")}}
