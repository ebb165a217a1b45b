"""Test a connection of HTTP/2 with mutated frames, and that any requests and responses arrive as they were sent."""

import asyncio
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.http.listener.clocks import ConnectionBounds, Connections
from app.http.listener.http2.clocks import Http2Bounds, Http2Stream
from app.http.listener.http2.connection import REFUSED, Header, Http2Connection
from tests.app.http.listener.fake_transport import FakeTransport
from tests.support import http2_frames as h2
from tests.support.http2_frames import Engine, frame, split_frames
from tests.support.loops import in_loop

MAX_STREAMS = 16
MAX_UNSENT_BYTES = 64 * 1024
# Serialized at once, and one frame above it.
MAX_WRITTEN_BYTES = MAX_UNSENT_BYTES + 256 * 1024 + 64 * 1024
SEED, PARTS = 7540, 4
NUM_FRAMES = 1_000_000 // PARTS


class Answering:
    """Sends each stream's body back, as it arrives or at its end; the path of the request says which and how."""

    def __init__(self) -> None:
        self.num_opened = self.num_closed = 0

    def open(
        self, connection: Http2Connection, stream_id: int, headers: tuple[Header, ...], is_end: bool
    ) -> Http2Stream:
        self.num_opened += 1
        path = dict(headers).get(b":path", b"")
        if path == b"/refused":
            self.num_closed += 1
            connection.send_headers(stream_id, [(b":status", b"415")], is_end=True)
            return REFUSED
        stream = AnsweringStream(self, connection, stream_id, path)
        if is_end:
            stream.receive(b"", True)
        return stream


class AnsweringStream:
    def __init__(self, all_streams: Answering, connection: Http2Connection, stream_id: int, path: bytes) -> None:
        self._all = all_streams
        self._connection = connection
        self._stream_id = stream_id
        self._path = path
        self._is_closed = self._is_begun = False
        self.received = bytearray()

    def receive(self, data: bytes, is_end: bool) -> None:
        assert not self._is_closed
        connection, stream_id = self._connection, self._stream_id
        if self._path == b"/reset":
            connection.reset(stream_id)
            return
        if self._path == b"/early":
            # The response is complete before the request.
            connection.consumed(stream_id, len(data))
            if not self._is_begun:
                self._is_begun = True
                connection.send_headers(stream_id, [(b":status", b"200")])
                connection.end(stream_id, [(b"early", b"1")])
            return
        self.received += data
        if self._path != b"/unread":
            connection.consumed(stream_id, len(data))
        if is_end:
            connection.send_headers(stream_id, [(b":status", b"200")])
            connection.send_data(stream_id, bytes(self.received))
            connection.call_when_sent(stream_id)

    def has_space(self) -> None:
        assert not self._is_closed
        self._connection.end(self._stream_id, [(b"ok", b"1")])

    def closed(self) -> None:
        assert not self._is_closed
        self._is_closed = True
        if self._path == b"/unread":
            self._connection.consumed(self._stream_id, len(self.received))
        self._all.num_closed += 1

    def check(self, now_s: float) -> None: ...


class Attack:
    """One connection whose client sends anything."""

    def __init__(self) -> None:
        self.failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.failures.append(context))
        self.answering = Answering()
        self.limits = Connections(ConnectionBounds())
        self.opened: set[Http2Connection] = set()
        bounds = Http2Bounds(max_streams=MAX_STREAMS)
        self.connection = Http2Connection(self.answering.open, bounds, self.limits, self.opened)
        self.transport = FakeTransport()
        self.transport.open(self.connection)

    async def send(self, data: bytes, reads: bool) -> bool:
        """Return False if the connection has ended."""
        if self.transport.is_closed:
            return False
        self.connection.data_received(data)
        await asyncio.sleep(0)
        if reads:
            self.transport.take()
            await asyncio.sleep(0)
        self.check()
        return True

    def check(self) -> None:
        assert not self.failures
        assert len(self.connection.streams) <= MAX_STREAMS
        assert self.answering.num_opened - self.answering.num_closed <= MAX_STREAMS
        assert len(self.transport.unread) <= MAX_WRITTEN_BYTES

    async def end(self) -> None:
        """Lose the connection. Nothing of it is left."""
        connection = self.connection
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert not self.failures
        assert self.answering.num_opened == self.answering.num_closed
        assert not connection.streams
        assert not self.opened
        assert self.limits.own_open == 0


def client_frames(paths: list[bytes], sizes: list[int]) -> list[bytes]:
    """Return the frames of valid requests, after the preface."""
    engine = Engine({h2.INITIAL_WINDOW_SIZE: 100_000})
    for path, size in zip(paths, sizes, strict=True):
        engine.request(h2.headers_of(path.decode()), b"b" * size)
    engine.ngh2.ping(b"12345678")
    return split_frames(engine.ngh2.data_to_send()[len(h2.PREFACE) :])


PATHS = (b"/echo", b"/unread", b"/early", b"/reset", b"/refused")
Change = tuple[str, int, int]
CHANGES = ("bit", "cut", "twice", "swap", "insert", "drop", "kind", "flags", "stream", "length")


def mutated(frames: list[bytes], changes: list[Change], inserted: bytes) -> list[bytes]:
    """Return the frames with some changes: the kind, the number that selects the frame, and a value."""
    frames = list(frames)
    for kind, index, value in changes:
        at = index % len(frames)
        one = bytearray(frames[at])
        if kind == "bit":
            one[value // 8 % len(one)] ^= 1 << value % 8
        elif kind == "cut":
            del one[value % len(one) :]
        elif kind == "twice":
            one *= 2
        elif kind == "swap":
            other = value % len(frames)
            frames[other], one = bytes(one), bytearray(frames[other])
        elif kind == "insert":
            one += frame(value % 12, inserted, value >> 4 & 255, (value >> 12) % 9)
        elif kind == "drop":
            one.clear()
        else:
            _change_head(one, kind, value)
        frames[at] = bytes(one) or h2.SETTINGS_ACK
    return frames


def _change_head(one: bytearray, kind: str, value: int) -> None:
    """Change a field of the frame's head, and nothing else."""
    one += bytes(max(h2.HEAD_BYTES - len(one), 0))
    if kind == "length":
        one[1:3] = (value % 2**16).to_bytes(2, "big")
    elif kind == "stream":
        one[5:9] = h2.number(value % 9)
    else:
        one[3 if kind == "kind" else 4] = value % (12 if kind == "kind" else 256)


def pieces(data: bytes, sizes: Callable[[], int]) -> Iterator[bytes]:
    """Yield the bytes in parts of these sizes."""
    at = 0
    while at < len(data):
        size = sizes()
        yield data[at : at + size]
        at += size


async def attack(frames: list[bytes], next_size: Callable[[], int], reads: bool) -> None:
    tried = Attack()
    for piece in pieces(h2.PREFACE + b"".join(frames), next_size):
        if not await tried.send(piece, reads):
            break
    await tried.end()


change = st.tuples(st.sampled_from(CHANGES), st.integers(0, 63), st.integers(0, 2**16 - 1))


@given(
    st.lists(st.tuples(st.sampled_from(PATHS), st.integers(0, 40_000)), min_size=1, max_size=6),
    st.lists(change, max_size=8),
    st.binary(max_size=40),
    st.randoms(use_true_random=False),
    st.booleans(),
)
@settings(deadline=None, max_examples=100)
def test_mutated_frames_only_end_the_connection(
    requests: list[tuple[bytes, int]], changes: list[Change], inserted: bytes, source: random.Random, reads: bool
) -> None:
    frames = mutated(client_frames(*map(list, zip(*requests, strict=True))), changes, inserted)
    largest = max(source.choice((3, 100, 20_000, 200_000)), sum(map(len, frames)) // 300)
    in_loop(attack)(frames, partial(source.randint, 1, largest), reads)


@given(st.binary(max_size=300), st.booleans())
@settings(deadline=None, max_examples=50)
def test_any_bytes_only_end_the_connection(content: bytes, has_preface: bool) -> None:
    in_loop(attack)([h2.settings(), content] if has_preface else [content], lambda: 50, True)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(SEED, SEED + PARTS))
@in_loop
async def test_million_mutated_frames(seed: int) -> None:
    print(f"seed {seed}")
    source = random.Random(seed)
    num_frames = 0
    while num_frames < NUM_FRAMES:
        count = source.randint(1, 12)
        paths, sizes = source.choices(PATHS, k=count), [source.choice((0, 5, 3_000, 60_000)) for _ in range(count)]
        frames = client_frames(paths, sizes)
        changes = [
            (source.choice(CHANGES), source.randrange(64), source.randrange(2**16)) for _ in range(source.randint(0, 4))
        ]
        frames = mutated(frames, changes, source.randbytes(source.randrange(40)))
        num_frames += len(frames)
        largest = source.choice((30, 1_000, 20_000, 200_000))
        await attack(frames, partial(source.randint, 1, largest), source.random() < 0.5)
