import asyncio
import socket
import struct
from typing import Any

import msgspec
import numpy as np
import pytest

from frameworks.core.channel.arrays import INLINE_BYTES, Reference
from frameworks.core.channel.channel import FULL_BYTES, MAX_FRAME_BYTES, SPLIT_BYTES, Channel
from frameworks.core.channel.messages import ChannelLost, MessageTooLarge, ProtocolError
from frameworks.core.errors import InvalidInput
from frameworks.engine.process.wire.messages import Answer, Cancel, Close, Closed, Counted, Free, Ping, Pong, ToEngine
from frameworks.types import Array
from tests.support.channels import End, frame, frames_of, in_both_loops, open_pair, open_to_socket, read_all
from tests.support.loops import settle, soon


@in_both_loops
async def test_messages_of_one_round_share_a_frame() -> None:
    end, peer = await open_to_socket()
    for number in range(3):
        end.channel.send(Ping(number))
    await settle()
    end.channel.send(Ping(3))
    await settle()
    end.channel.close()
    with peer:
        assert frames_of(await read_all(peer)) == [[["Ping", 0], ["Ping", 1], ["Ping", 2]], [["Ping", 3]]]


@in_both_loops
async def test_messages_of_one_read_arrive_together() -> None:
    end, peer = await open_to_socket()
    with peer:
        peer.sendall(frame([Ping(0), Ping(1)]) + frame([]) + frame([Ping(2)]))
        await soon(lambda: bool(end.batches))
    assert end.batches == [[Ping(0), Ping(1), Ping(2)]]
    end.channel.close()


@in_both_loops
async def test_frame_in_pieces_arrives_whole() -> None:
    end, peer = await open_to_socket()
    sent = frame([Ping(0)]) + frame([Ping(1), Cancel(7)]) + frame([Closed()])
    with peer:
        for at in range(len(sent)):
            peer.sendall(sent[at : at + 1])
            await asyncio.sleep(0)
        assert await end.received_count(4) == [Ping(0), Ping(1), Cancel(7), Closed()]
    end.channel.close()


@in_both_loops
async def test_large_messages_are_split_into_frames() -> None:
    left, right = await open_pair()
    sent = [Answer(number, bytes(300_000), 0.0, 0.0) for number in range(20)]
    for message in sent:
        left.channel.send(message)
    assert await right.received_count(20) == sent
    assert left.channel.buffered_bytes == 0
    left.channel.close()
    await soon(lambda: bool(right.lost))


@in_both_loops
async def test_frame_is_sent_at_split_size() -> None:
    end, peer = await open_to_socket()
    reading = asyncio.create_task(read_all(peer))
    for number in range(3):
        end.channel.send(Answer(number, bytes(SPLIT_BYTES // 2), 0.0, 0.0))
    end.channel.close()
    with peer:
        assert [len(messages) for messages in frames_of(await reading)] == [2, 1]


@in_both_loops
async def test_message_above_bound_raises_and_sends_nothing() -> None:
    left, right = await open_pair()
    left.channel.send(Ping(1))
    with pytest.raises(MessageTooLarge, match="64 MiB"):
        left.channel.send(Answer(1, bytes(MAX_FRAME_BYTES), 0.0, 0.0))
    left.channel.send(Ping(2))
    assert await right.received_count(2) == [Ping(1), Ping(2)]
    left.channel.close()


@in_both_loops
async def test_message_near_bound_gets_own_frame() -> None:
    left, right = await open_pair()
    sent = [Answer(0, bytes(SPLIT_BYTES // 2), 0.0, 0.0), Answer(1, bytes(MAX_FRAME_BYTES - 100), 0.0, 0.0), Ping(2)]
    for message in sent:
        left.channel.send(message)
    assert await right.received_count(3) == sent
    assert not right.lost
    left.channel.close()


@in_both_loops
async def test_frame_above_bound_ends_channel_before_content() -> None:
    end, peer = await open_to_socket()
    with peer:
        peer.sendall(struct.pack(">I", MAX_FRAME_BYTES + 1))
        await soon(lambda: bool(end.lost))
        assert "expected at most 64 MiB" in end.lost[0]
        assert peer.recv(1) == b""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x90garbage",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x91\xc0",
        b"\x91\x91\xa4Ping",
        b"\x91\x91\xa4Ping\x92\x01",
        b"\x91\x92\xa4Ping\xa11",
        b"\x91\x92\xa4Ring\x01",
        b"\x91\x92\xa4Ping\xc1",
        b"\x91\x92\xa2\xff\xfe\x01",
        b"\x91\x92\xa6Answer\xd8\x20" + bytes(16),
        b"\x91" * 100_000,
        b"\x91\x96\xa6Answer\x01" + b"\x91" * 100_000,
        b"\xc0" * 100,
    ],
    ids=lambda content: content[:16].hex(),
)
def test_damaged_frame_ends_channel_after_earlier_messages(content: bytes) -> None:
    async def whole() -> None:
        end, peer = await open_to_socket()
        with peer:
            peer.sendall(frame([Ping(1)]) + struct.pack(">I", len(content)) + content + frame([Ping(2)]))
            await soon(lambda: bool(end.lost))
            assert end.received == [Ping(1)]
            assert len(end.lost) == 1
            assert end.lost[0].startswith("frame: expected messages")
            with pytest.raises(ChannelLost):
                end.channel.send(Ping(3))

    asyncio.run(whole())


@in_both_loops
async def test_message_of_other_direction_ends_channel() -> None:
    batches: list[list[Any]] = []
    lost: list[str] = []
    channel: Channel[ToEngine] = Channel(ToEngine, batches.append, lost.append)
    one, peer = socket.socketpair()
    await channel.open(one)
    with peer:
        peer.sendall(frame([Pong(1, 0.0)]))
        await soon(lambda: bool(lost))
    assert not batches
    assert "Pong" in lost[0]


@in_both_loops
async def test_peer_that_closes_calls_on_lost_once() -> None:
    end, peer = await open_to_socket()
    peer.sendall(frame([Ping(1)]))
    peer.close()
    await soon(lambda: bool(end.lost))
    await settle()
    assert end.received == [Ping(1)]
    assert end.lost == ["the peer closed the connection"]
    assert not end.channel.is_open
    assert end.channel.buffered_bytes == 0


@in_both_loops
async def test_peer_that_closes_within_frame_is_reported() -> None:
    end, peer = await open_to_socket()
    peer.sendall(frame([Ping(1)])[:-1])
    peer.close()
    await soon(lambda: bool(end.lost))
    assert end.lost == ["the peer closed the connection within a message"]


@in_both_loops
async def test_closed_channel_delivers_messages_and_stays_silent() -> None:
    left, right = await open_pair()
    left.channel.send(Ping(1))
    left.channel.close()
    await soon(lambda: bool(right.lost))
    await settle()
    assert right.received == [Ping(1)]
    assert not left.lost
    with pytest.raises(ChannelLost):
        left.channel.send(Ping(2))


@in_both_loops
async def test_failed_channel_calls_on_lost_once() -> None:
    left, right = await open_pair()
    left.channel.fail("answer: expected fields, got others")
    left.channel.fail("again")
    await soon(lambda: bool(right.lost))
    await settle()
    assert left.lost == ["answer: expected fields, got others"]
    assert len(right.lost) == 1


@in_both_loops
async def test_send_to_dead_peer_calls_on_lost_once() -> None:
    end, peer = await open_to_socket()
    peer.close()
    for number in range(3):
        end.channel.send(Answer(number, bytes(SPLIT_BYTES), 0.0, 0.0))
    await soon(lambda: bool(end.lost))
    await settle()
    assert len(end.lost) == 1


def test_channel_that_is_not_open_raises() -> None:
    with pytest.raises(ChannelLost):
        End().channel.send(Ping(1))


@in_both_loops
async def test_protocol_error_of_callback_ends_channel() -> None:
    def refuse(_: list[Any]) -> None:
        raise ProtocolError("answer: expected fields, got others")

    lost: list[str] = []
    channel: Channel[ToEngine] = Channel(ToEngine, refuse, lost.append)
    one, peer = socket.socketpair()
    await channel.open(one)
    with peer:
        peer.sendall(frame([Ping(1)]))
        assert await asyncio.to_thread(peer.recv, 1) == b""
    assert lost == ["answer: expected fields, got others"]


def test_exception_of_callback_ends_channel() -> None:
    async def whole() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
        lost: list[str] = []
        channel: Channel[ToEngine] = Channel(ToEngine, lambda messages: messages.remove(Ping(9)), lost.append)
        one, peer = socket.socketpair()
        await channel.open(one)
        with peer:
            peer.sendall(frame([Ping(1)]))
            await soon(lambda: bool(lost))
        assert "ValueError" in lost[0]

    reported: list[dict[str, Any]] = []
    asyncio.run(whole())
    assert len(reported) == 1


@in_both_loops
async def test_callback_may_close_channel() -> None:
    batches: list[list[Any]] = []
    lost: list[str] = []

    def close(messages: list[Any]) -> None:
        batches.append(messages)
        channel.close()

    channel: Channel[ToEngine] = Channel(ToEngine, close, lost.append)
    one, peer = socket.socketpair()
    await channel.open(one)
    with peer:
        peer.sendall(frame([Close()]) + b"garbage that no frame begins with")
        await soon(lambda: bool(batches))
        await settle()
    assert not lost


@pytest.mark.parametrize(
    ("value", "match"), [("caf\u00e9 \ud800", "text: .* lone surrogate"), (2**64, "number: .* 64 bits")]
)
def test_value_that_msgpack_lacks_is_invalid_input(value: object, match: str) -> None:
    async def whole() -> None:
        left, right = await open_pair()
        left.channel.send(Ping(1))
        with pytest.raises(InvalidInput, match=match):
            left.channel.send(Answer(1, [bytes(1000), value], 0.0, 0.0))
        left.channel.send(Ping(2))
        assert await right.received_count(2) == [Ping(1), Ping(2)]
        left.channel.close()

    asyncio.run(whole())


class _Memory:
    """A memory with room for one array."""

    def __init__(self) -> None:
        self.array: Array | None = None

    def place(self, array: Array) -> Reference | None:
        if self.array is not None:
            return None
        self.array = np.frombuffer(array.tobytes(), np.uint8)
        return 5, 0, array.nbytes

    def take_back(self, block: int) -> None:
        assert block == 5
        self.array = None

    def is_full(self) -> bool:
        return self.array is not None

    def find(self, block: int, offset: int, nbytes: int) -> Array:
        assert self.array is not None
        assert block == 5
        return self.array[offset : offset + nbytes]


@in_both_loops
async def test_large_array_travels_through_shared_memory() -> None:
    memory = _Memory()
    left, right = await open_pair(End(placement=memory), End(find=memory.find))
    array = np.arange(INLINE_BYTES, dtype=np.float64)
    with pytest.raises(TypeError):
        left.channel.send(Answer(1, [array, object()], 0.0, 0.0))
    assert not memory.is_full()
    left.channel.send(Answer(2, {"y": array, "z": array}, 0.0, 0.0))
    (answer,) = await right.received_count(1)
    assert np.shares_memory(answer.answer["y"], memory.find(5, 0, array.nbytes))
    assert np.array_equal(answer.answer["y"], array)
    assert np.array_equal(answer.answer["z"], array)
    left.channel.close()


@in_both_loops
async def test_slow_reader_makes_channel_full_until_read() -> None:
    end, peer = await open_to_socket()
    count = 0
    while not end.channel.is_full:
        end.channel.send(Answer(count, bytes(SPLIT_BYTES // 4), 0.0, 0.0))
        count += 1
    assert count > 1
    await settle()
    assert end.channel.buffered_bytes > FULL_BYTES
    end.channel.send(Counted(1, 2))
    reading = asyncio.create_task(read_all(peer))
    await soon(lambda: not end.channel.is_full)
    await soon(lambda: end.channel.buffered_bytes == 0)
    end.channel.close()
    with peer:
        assert len([each for messages in frames_of(await reading) for each in messages]) == count + 1


@in_both_loops
async def test_frame_that_never_ends_takes_no_memory() -> None:
    end, peer = await open_to_socket()
    with peer:
        peer.sendall(struct.pack(">I", MAX_FRAME_BYTES) + b"\xdd")
        await settle()
        end.channel.send(Free([1]))
        assert await asyncio.to_thread(peer.recv, 100)
    await soon(lambda: bool(end.lost))
    assert end.lost == ["the peer closed the connection within a message"]


def test_head_of_frame_is_a_list() -> None:
    async def whole() -> None:
        end, peer = await open_to_socket()
        end.channel.send(Ping(1))
        end.channel.close()
        with peer:
            data = await read_all(peer)
        assert msgspec.msgpack.decode(data[4:], type=list[Ping]) == [Ping(1)]

    asyncio.run(whole())
