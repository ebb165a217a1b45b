"""A long body is received into the bytes that its parser reads."""

import gc

from app.http.bodies import BodyBytes


def test_body_bytes_are_written_in_place() -> None:
    memory = BodyBytes()
    assert memory.content == b""
    array = memory.lease(300_000)
    array[:] = 7
    view = array.data
    view[:3] = b"abc"
    content = memory.content
    assert type(content) is bytes
    assert content == b"abc" + bytes([7]) * 299_997


def test_body_bytes_live_as_long_as_a_view() -> None:
    view = BodyBytes().lease(4 * 1024 * 1024).data
    gc.collect()
    others = [bytes(4 * 1024 * 1024) for _ in range(4)]
    view[:] = b"x" * len(view)
    assert not any(map(any, others))
