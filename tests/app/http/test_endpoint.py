"""HttpExchange: what it holds while a request is processed."""

import sys
from typing import Any

from app.http.disconnects import DisconnectWatcher
from app.http.endpoint import HttpExchange
from app.observability.metrics import RequestRecord
from app.protocols.codec import Target
from app.protocols.native.codec import NativeCodec
from frameworks.scheduling.admission import Permit, RequestLimit
from tests.app.http.receivers import receiver


def test_drop_body_releases_the_bytes() -> None:
    async def send(message: Any) -> None:
        raise AssertionError

    body = b'{"model_name": "m", "text": "' + b"x" * 1000 + b'"}'
    references = sys.getrefcount(body)
    exchange = HttpExchange(DisconnectWatcher(), receiver(), RequestRecord("id", "POST", "/infer", 0.0))
    exchange.open(NativeCodec(), Target(), body, send, Permit(RequestLimit("the server", None, None)))
    assert sys.getrefcount(body) > references
    exchange.drop_body()
    assert sys.getrefcount(body) == references
