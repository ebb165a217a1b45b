"""Requests over HTTP, from the parts that a test cares for."""

from typing import Any

from app.http.disconnects import DisconnectWatcher
from app.http.request import HttpRequest, RequestHead
from tests.app.http.receivers import receiver

_WATCHER = DisconnectWatcher()


async def no_send(message: Any) -> None:
    raise AssertionError(message)


def http_request(*headers: tuple[bytes, bytes], path: str = "/infer", send: Any = no_send) -> HttpRequest:
    """Return a POST request with these headers, whose client stays connected."""
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": list(headers)}
    return HttpRequest(_WATCHER, RequestHead(scope), receiver(), send, None)
