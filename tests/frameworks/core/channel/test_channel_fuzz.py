import asyncio
from typing import Any, get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from frameworks.core.channel.arrays import ArrayWriter, array_reader
from frameworks.engine.process.wire.messages import FromEngine, ToEngine
from tests.support import wire_strategies
from tests.support.channels import EITHER, bounded, frame, open_pair, open_to_socket
from tests.support.loops import soon
from tests.support.wire_values import is_same

_decoder = msgspec.msgpack.Decoder(EITHER, ext_hook=array_reader())
_encoder = msgspec.msgpack.Encoder(enc_hook=ArrayWriter().write)
_some_messages = st.lists(wire_strategies.sent_messages, max_size=6)


def _plain(messages: list[Any]) -> list[Any]:
    """Return messages as plain lists, with arrays for arrays."""
    return [msgspec.msgpack.decode(_encoder.encode(each), ext_hook=array_reader()) for each in messages]


@given(_some_messages, st.data())
def test_messages_arrive_equal_and_in_order(sent: list[ToEngine | FromEngine], data: st.DataObject) -> None:
    pauses = data.draw(st.lists(st.booleans(), min_size=len(sent), max_size=len(sent)))

    async def whole() -> None:
        left, right = await open_pair()
        for message, is_pause in zip(sent, pauses, strict=True):
            left.channel.send(message)
            if is_pause:
                await asyncio.sleep(0)
        left.channel.close()
        await soon(lambda: bool(right.lost))
        assert [type(each) for each in right.received] == [type(each) for each in sent]
        assert is_same(_plain(right.received), _plain(sent))

    asyncio.run(bounded(whole()))


@given(wire_strategies.sent_messages)
def test_every_message_is_decoded_equal(message: ToEngine | FromEngine) -> None:
    encoded = _encoder.encode(message)
    assert _encoder.encode(_decoder.decode(encoded)) == encoded


def _received(data: bytes) -> tuple[list[Any], list[str]]:
    """Send bytes and close; return the messages and the reasons of the losses."""

    async def whole() -> tuple[list[Any], list[str]]:
        end, peer = await open_to_socket()
        with peer:
            peer.sendall(data)
        await soon(lambda: bool(end.lost))
        return end.received, end.lost

    return asyncio.run(whole())


def _frames(batches: list[list[Any]]) -> list[bytes]:
    return [frame([msgspec.Raw(_encoder.encode(each)) for each in batch]) for batch in batches]


@given(st.lists(_some_messages, min_size=1, max_size=3), st.data())
def test_cut_frames_deliver_whole_ones(batches: list[list[Any]], data: st.DataObject) -> None:
    frames = _frames(batches)
    stream = b"".join(frames)
    cut = data.draw(st.integers(0, len(stream)))
    whole = 0
    while whole < len(frames) and sum(map(len, frames[: whole + 1])) <= cut:
        whole += 1
    is_within = sum(map(len, frames[:whole])) < cut
    received, lost = _received(stream[:cut])
    assert len(received) == sum(map(len, batches[:whole]))
    assert lost == ["the peer closed the connection" + " within a message" * is_within]


@given(st.lists(_some_messages, min_size=1, max_size=3), st.data())
def test_flipped_bytes_end_channel_once(batches: list[list[Any]], data: st.DataObject) -> None:
    stream = bytearray(b"".join(_frames(batches)))
    for at in data.draw(st.lists(st.integers(0, len(stream) - 1), min_size=1, max_size=4)):
        stream[at] ^= data.draw(st.integers(1, 255))
    received, lost = _received(bytes(stream))
    assert len(lost) == 1
    assert lost[0].startswith(("the peer closed", "frame: expected", "array: expected"))
    assert all(isinstance(each, EITHER) for each in received)


@given(st.binary(max_size=200))
def test_random_bytes_end_channel_once(stream: bytes) -> None:
    _, lost = _received(stream)
    assert len(lost) == 1


@given(st.lists(wire_strategies.plain_values, max_size=3))
def test_random_values_end_channel_once(values: list[object]) -> None:
    received, lost = _received(frame(values))
    assert len(lost) == 1
    assert bool(received) <= bool(values)


def test_every_class_of_messages_is_generated() -> None:
    assert wire_strategies.message_fields.keys() == {*get_args(ToEngine), *get_args(FromEngine)}
