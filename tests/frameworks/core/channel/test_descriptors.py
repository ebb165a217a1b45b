import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from frameworks.core.channel.descriptors import DescriptorSocket, socket_pair
from frameworks.core.channel.messages import ChannelLost
from tests.support.channels import in_both_loops
from tests.support.loops import settle, soon, task

GROUPS = 40
"""More than the queue of a datagram socket takes."""


def open_pair() -> tuple[DescriptorSocket, DescriptorSocket]:
    one, other = socket_pair()
    return DescriptorSocket(one), DescriptorSocket(other)


def pipe_with(text: bytes) -> int:
    """Return the reading end of a pipe that holds this text."""
    read, write = os.pipe()
    os.write(write, text)
    os.close(write)
    return read


def read_and_close(descriptor: int) -> bytes:
    text = os.read(descriptor, 100)
    os.close(descriptor)
    return text


def open_pipes() -> int:
    """Return how many descriptors of this process are pipes."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing
            found += os.readlink(each).startswith("pipe:")
    return found


def send_pipe(sender: DescriptorSocket, number: int) -> None:
    pipe = pipe_with(b"%d" % number)
    sender.send(number, [pipe])
    os.close(pipe)


@in_both_loops
async def test_groups_are_taken_in_any_order() -> None:
    sender, receiver = open_pair()
    first, second = pipe_with(b"first"), pipe_with(b"second")
    waiting = task(receiver.take(2))
    await settle()
    sender.send(1, [first, second])
    sender.send(2, [second])
    [last] = await waiting
    taken = await receiver.take(1)
    os.close(last)
    for each in (first, second):
        os.close(each)
    assert [read_and_close(each) for each in taken] == [b"first", b"second"]
    sender.close()
    receiver.close()


@in_both_loops
async def test_groups_beyond_the_queue_all_arrive() -> None:
    before = open_pipes()
    sender, receiver = open_pair()
    for number in range(GROUPS):
        send_pipe(sender, number)
    for number in range(GROUPS):
        [pipe] = await receiver.take(number)
        assert read_and_close(pipe) == b"%d" % number
    sender.close()
    receiver.close()
    assert open_pipes() == before


@in_both_loops
async def test_close_closes_all_untaken_groups() -> None:
    before = open_pipes()
    sender, receiver = open_pair()
    for number in range(GROUPS):
        send_pipe(sender, number)
    os.close((await receiver.take(0))[0])
    assert open_pipes() > before
    sender.close()
    receiver.close()
    receiver.close()
    assert open_pipes() == before


@in_both_loops
async def test_take_fails_when_the_socket_closes() -> None:
    sender, receiver = open_pair()
    waiting = task(receiver.take(1))
    await settle()
    receiver.close()
    with pytest.raises(ChannelLost):
        await waiting
    with pytest.raises(ChannelLost):
        await receiver.take(2)
    sender.close()


@in_both_loops
async def test_send_to_an_ended_peer_is_dropped() -> None:
    before = open_pipes()
    sender, receiver = open_pair()
    for number in range(GROUPS):
        send_pipe(sender, number)
    receiver.close()
    await soon(lambda: open_pipes() == before)
    send_pipe(sender, GROUPS)
    sender.close()
    send_pipe(sender, GROUPS)
    assert open_pipes() == before


@in_both_loops
async def test_every_send_to_ended_peer_is_dropped() -> None:
    before = open_pipes()
    sender, receiver = open_pair()
    receiver.close()
    # The system gives the later ones another error.
    for number in range(3):
        send_pipe(sender, number)
    sender.close()
    assert open_pipes() == before


@in_both_loops
async def test_group_of_a_cancelled_take_is_closed() -> None:
    before = open_pipes()
    sender, receiver = open_pair()
    early, late = task(receiver.take(1)), task(receiver.take(2))
    await settle()
    late.cancel()
    # Both arrive in the round in which the first is cancelled too.
    send_pipe(sender, 1)
    send_pipe(sender, 2)
    receiver._receive()
    early.cancel()
    await asyncio.gather(early, late, return_exceptions=True)
    assert early.cancelled()
    await settle()
    assert open_pipes() == before
    sender.close()
    receiver.close()


@in_both_loops
async def test_dropped_groups_are_closed() -> None:
    before = open_pipes()
    sender, receiver = open_pair()
    receiver.drop(1)
    for number in (1, 2):
        send_pipe(sender, number)
    await settle()
    receiver.drop(2)
    assert open_pipes() == before
    sender.close()
    receiver.close()
