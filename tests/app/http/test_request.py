"""HttpRequest: what it holds while a request is processed."""

import gzip
import sys
import threading

import pytest

from app.protocols.native.codec import NativeCodec
from app.protocols.shared.codec import Target
from app.protocols.shared.compression import body_encoding
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import TextDelta
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.types import ModelSpec
from tests.app.http.requests import http_request
from tests.app.protocols.generating import Caller, EndpointHarness, ScriptedGeneration
from tests.app.protocols.native.specs import SPECS, WRITER
from tests.support.loops import in_loop


def test_decoded_request_releases_the_body() -> None:
    body = b'{"model_name": "m", "text": "' + b"x" * 1000 + b'"}'
    references = sys.getrefcount(body)
    request = http_request()
    request.codec = NativeCodec()
    request.open_body(body, Target())
    assert sys.getrefcount(body) > references
    del request.read
    assert sys.getrefcount(body) == references


def test_compressed_body_is_inflated_once_off_the_loop() -> None:
    sent = bytearray(gzip.compress(b'{"model_name": "matrix", "input_data": [[1, 2, 3]]}'))
    request = http_request()
    request.codec = NativeCodec()
    encoding = body_encoding([(b"content-encoding", b"gzip")])
    assert encoding is not None
    request.permit = Permit(RequestLimit("the server", None, None))
    request.open_compressed(sent, Target(), encoding, 1000)  # type: ignore[arg-type]
    assert request.is_long_to_decode
    for _ in range(2):
        named = request.read()
        sent[:] = b"no gzip"  # a second decompression would fail
        (value,) = named.decode(SPECS["matrix"]).request.inputs.values()
        assert value.tolist() == [[1, 2, 3]]
    request.permit.release()


def test_refused_compressed_body_is_released() -> None:
    body = b"no gzip" * 100
    references = sys.getrefcount(body)
    request = http_request()
    request.codec = NativeCodec()
    encoding = body_encoding([(b"content-encoding", b"gzip")])
    assert encoding is not None
    request.permit = Permit(RequestLimit("the server", None, None))
    request.open_compressed(body, Target(), encoding, 1000)
    with pytest.raises(InvalidInput):
        request.read()
    assert sys.getrefcount(body) == references
    request.permit.release()


@in_loop
async def test_long_body_is_routed_on_the_loop() -> None:
    """The names in it are read on a thread, and the state of models belongs to the loop."""
    harness = EndpointHarness(ScriptedGeneration(TextDelta(0, "a", "stop")))
    threads: list[threading.Thread] = []

    def spec_for(permit: Permit) -> ModelSpec:
        threads.append(threading.current_thread())
        return WRITER

    harness.version.spec_for = spec_for  # type: ignore[method-assign]
    caller = Caller(harness, prompt="{" * 300 + "a" * 8000)
    await caller.send_request()
    assert caller.status == 200
    assert set(threads) == {threading.main_thread()}
