"""HttpExchange: what it holds while a request is processed."""

import gzip
import sys
from typing import Any

from app.http.disconnects import DisconnectWatcher
from app.http.endpoint import HttpExchange
from app.observability.metrics import RequestRecord
from app.protocols.native.codec import NativeCodec
from app.protocols.shared.codec import Target
from tests.app.http.receivers import receiver
from tests.app.protocols.native.specs import find_spec


async def send(message: Any) -> None:
    raise AssertionError


def test_drop_body_releases_the_bytes() -> None:
    body = b'{"model_name": "m", "text": "' + b"x" * 1000 + b'"}'
    references = sys.getrefcount(body)
    exchange = HttpExchange(DisconnectWatcher(), receiver(), RequestRecord("id", "POST", "/infer", 0.0))
    exchange.open(NativeCodec(), Target(), body, send)
    assert sys.getrefcount(body) > references
    exchange.drop_body()
    assert sys.getrefcount(body) == references


def test_compressed_body_is_inflated_once_off_the_loop() -> None:
    inflated: list[bytes] = []

    def inflate() -> bytes:
        inflated.append(gzip.decompress(sent))
        return inflated[-1]

    sent = gzip.compress(b'{"model_name": "matrix", "input_data": [[1, 2, 3]]}')
    exchange = HttpExchange(DisconnectWatcher(), receiver(), RequestRecord("id", "POST", "/infer", 0.0))
    exchange.codec = NativeCodec()
    exchange.open_compressed(Target(), inflate, send)
    assert exchange.is_long_to_decode
    assert not inflated
    for _ in range(2):
        (value,) = exchange.decode(find_spec).request.inputs.values()
        assert value.tolist() == [[1, 2, 3]]
    assert len(inflated) == 1
