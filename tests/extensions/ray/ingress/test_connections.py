"""The port of a replica, the first bytes of a connection, clocks of two nodes, and peers that are silent or leave."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.ray.handshake import (
    MAX_HANDSHAKE_BYTES,
    PROTOCOL_VERSION,
    Address,
    Handshake,
    encode_handshake,
    take_handshake,
)
from extensions.ray.ingress import link
from extensions.ray.ingress.connections import ANNOUNCED_S, MAX_WITHDRAWN, WithdrawnReplicas
from extensions.ray.ingress.link import PeerClock, ReplicaLink
from extensions.ray.replica import clients, listener
from frameworks.core.channel.messages import ProtocolError
from frameworks.core.errors import ModelFailed
from frameworks.engine.process.wire.messages import Infer
from frameworks.types import TensorBatch
from tests.extensions.ray.replicas import NODE, SECRET, Replica, ask, cluster, serving
from tests.support.certificates import Authority, server_pair
from tests.support.clocks import Clock
from tests.support.loops import HANGS_AFTER_S, in_loop, soon

HANDSHAKE = Handshake(PROTOCOL_VERSION, SECRET, "ingress", "1", "files")


async def connect(replica: Replica) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(replica.address.host, replica.address.port)


async def is_refused(replica: Replica, sent: bytes) -> bool:
    """Return whether the replica closes a connection after these bytes, without an answer."""
    reader, writer = await connect(replica)
    writer.write(sent)
    try:
        async with asyncio.timeout(HANGS_AFTER_S):
            return await reader.read(1) == b""
    except ConnectionError:
        return True
    finally:
        writer.close()


@in_loop
async def test_connection_without_handshake_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.05)
    async with cluster() as there:
        (replica,) = there.replicas.values()
        assert await is_refused(replica, b"")


@in_loop
async def test_wrong_handshake_is_refused() -> None:
    async with cluster() as there:
        (replica,) = there.replicas.values()
        wrong = [
            encode_handshake(Handshake(PROTOCOL_VERSION, "another", "ingress", "1", "files")),
            encode_handshake(Handshake(PROTOCOL_VERSION + 1, SECRET, "ingress", "1", "files")),
            (MAX_HANDSHAKE_BYTES + 1).to_bytes(4, "big") + b"x",
            b"GET / HTTP/1.1\r\n\r\n",
            (3).to_bytes(4, "big") + b"\xc1\xc1\xc1",
        ]
        for each in wrong:
            assert await is_refused(replica, each)
        assert not replica.clients


@in_loop
async def test_flood_of_connections_is_bounded() -> None:
    async with serving() as (there, group):
        (replica,) = there.replicas.values()
        flood = [await connect(replica) for _ in range(listener.MAX_UNKNOWN)]
        await soon(lambda: len(replica.listener._unknown) == listener.MAX_UNKNOWN)
        assert await is_refused(replica, b"")
        assert await ask(group, 1.0) == 2.0
        for _, writer in flood:
            writer.close()
        await soon(lambda: not replica.listener._unknown)


@in_loop
async def test_handshake_arrives_in_pieces() -> None:
    async with cluster() as there:
        (replica,) = there.replicas.values()
        reader, writer = await connect(replica)
        for byte in encode_handshake(HANDSHAKE):
            writer.write(bytes([byte]))
            await writer.drain()
        assert await reader.read(1)
        assert len(replica.clients) == 1
        writer.close()
        await soon(lambda: not replica.clients)


@in_loop
async def test_damaged_frame_ends_one_connection() -> None:
    async with serving() as (there, group):
        (replica,) = there.replicas.values()
        reader, writer = await connect(replica)
        writer.write(encode_handshake(HANDSHAKE) + (4).to_bytes(4, "big") + b"\xc1\xc1\xc1\xc1")
        async with asyncio.timeout(HANGS_AFTER_S):
            while await reader.read(1000):
                pass
        assert await ask(group, 1.0) == 2.0
        assert len(replica.clients) == 1
        writer.close()


@in_loop
async def test_silent_client_is_dropped() -> None:
    async with serving() as (there, group):
        (replica,) = there.replicas.values()
        [client] = replica.clients
        client.heard_s -= clients.SILENT_S + 1.0
        replica.versions.check()
        assert not replica.clients
        assert await ask(group, 1.0) == 2.0
        await soon(lambda: len(replica.clients) == 1)


@in_loop
async def test_silent_replica_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    is_closed = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        is_closed.set()

    server = await asyncio.start_server(never, "127.0.0.1", 0)
    address = Address("r", NODE, "127.0.0.1", server.sockets[0].getsockname()[1], SECRET)
    monkeypatch.setattr(link, "PING_S", 0.01)
    monkeypatch.setattr(link, "SILENT_S", 0.1)
    listener: Any = None
    with pytest.raises(ModelFailed, match="sent nothing"):
        await ReplicaLink(address, NODE).open("1", "files", "ingress", listener)
    await is_closed.wait()
    server.close()
    await server.wait_closed()


@in_loop
async def test_absent_replica_cannot_be_reached() -> None:
    listener: Any = None
    address = Address("r", NODE, "127.0.0.1", 1, SECRET)
    with pytest.raises(ModelFailed, match="cannot be reached"):
        await ReplicaLink(address, NODE).open("1", "files", "ingress", listener)


@in_loop
async def _check_tls() -> None:
    async with serving() as (there, group):
        assert await ask(group, 2.0, columns=100_000) == 4.0
        (replica,) = there.replicas.values()
        # A plain connection gets no answer, whatever it sends.
        assert await is_refused(replica, encode_handshake(HANDSHAKE))


def test_cluster_with_tls_encrypts_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority()
    certificate, key = server_pair(authority).write(tmp_path, "node")
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    monkeypatch.setenv("RAY_TLS_SERVER_CERT", str(certificate))
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", str(key))
    monkeypatch.setenv("RAY_TLS_CA_CERT", str(tmp_path / "ca.pem"))
    _check_tls()


@in_loop
async def test_arrival_is_shifted_to_other_node() -> None:
    async with cluster(0) as there:
        await there.start("another node")
        group = await there.group()
        (replica,) = there.replicas.values()
        [client] = replica.clients
        started = group.engines[0].started
        assert started is not None
        there_link: Any = started.link
        there_link._clock.observe = lambda *_: None
        there_link._clock.ahead_s = 1000.0
        arrived: list[float] = []
        infer = client._session._handlers[Infer]

        def note(message: Infer) -> None:
            arrived.append(message.arrived_s)
            infer(message)

        client._session._handlers[Infer] = note
        before_s = time.perf_counter()
        await group.submit(TensorBatch({"x": np.ones((1, 1), np.float32)}))
        assert before_s + 1000.0 <= arrived[0] <= time.perf_counter() + 1000.0
        await group.close()


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=8), st.floats(-1e6, 1e6))
def test_clock_error_is_within_shortest_trip(trips: list[tuple[float, float]], ahead_s: float) -> None:
    clock, now_s = PeerClock(), 0.0
    for there_s, back_s in trips:
        clock.observe(now_s, now_s + there_s + ahead_s, now_s + there_s + back_s)
        now_s += 10.0
    shortest_s = min(there_s + back_s for there_s, back_s in trips)
    assert abs(clock.ahead_s - ahead_s) <= shortest_s / 2 + 1e-6


@given(st.binary(max_size=200))
def test_damaged_handshake_is_refused(received: bytes) -> None:
    with suppress(ProtocolError):
        assert take_handshake(bytearray(received), SECRET) is None


@given(st.binary(max_size=50), st.text(max_size=50), st.text(max_size=50))
def test_handshake_is_taken_whole(rest: bytes, version: str, path: str) -> None:
    handshake = Handshake(PROTOCOL_VERSION, SECRET, "ingress", version, path)
    received = bytearray(encode_handshake(handshake) + rest)
    assert take_handshake(received, SECRET) == handshake
    assert received == rest


def test_foreign_metadata_is_no_address() -> None:
    address = Address("r", "n", "127.0.0.1", 1, SECRET)
    assert Address.from_metadata(address.to_metadata()) == address
    assert Address.from_metadata({}) is None
    assert Address.from_metadata({"replica": 1}) is None


def test_replica_is_withdrawn_a_second_later() -> None:
    clock = Clock()
    withdrawn = WithdrawnReplicas(clock)
    withdrawn.note(["a", "b"], ["b"])
    assert not withdrawn.is_withdrawn("a")
    clock.now_s += ANNOUNCED_S
    assert withdrawn.is_withdrawn("a")
    assert not withdrawn.is_withdrawn("b")


def test_replica_that_runs_again_is_not_withdrawn() -> None:
    clock = Clock()
    withdrawn = WithdrawnReplicas(clock)
    withdrawn.note(["a"], [])
    withdrawn.note([], ["a"])
    clock.now_s += ANNOUNCED_S
    assert not withdrawn.is_withdrawn("a")


def test_full_record_forgets_oldest_replica() -> None:
    clock = Clock()
    withdrawn = WithdrawnReplicas(clock)
    names = [str(number) for number in range(MAX_WITHDRAWN + 1)]
    for name in names:
        withdrawn.note([name], [])
    clock.now_s += ANNOUNCED_S
    assert not withdrawn.is_withdrawn(names[0])
    assert withdrawn.is_withdrawn(names[1])
