"""Two ends of a channel: messages, rounds of the loop, and the death of either end, in any order."""

import asyncio
import socket
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from frameworks.core.channel.messages import ChannelLost
from frameworks.engine.process.wire.messages import Answer, Ping
from tests.support.channels import End
from tests.support.loops import soon

_sides = st.integers(0, 1)


class TwoEnds(RuleBasedStateMachine):
    """Each end receives a prefix of what the other sent; all of it where both live; one loss where the other died."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.ends = (End(), End())
        self.sent: tuple[list[Any], list[Any]] = ([], [])
        self.is_dead = [False, False]
        self.sockets = socket.socketpair()
        for end, sock in zip(self.ends, self.sockets, strict=True):
            self.loop.run_until_complete(end.channel.open(sock))

    @rule(side=_sides, size=st.sampled_from([0, 100, 70_000, 300_000]))
    def send(self, side: int, size: int) -> None:
        """Send a message from one end. A closed end refuses it."""
        message = Answer(len(self.sent[side]), bytes(size), 0.0, 0.0) if size else Ping(len(self.sent[side]))
        channel = self.ends[side].channel

        async def send() -> None:
            is_open = channel.is_open
            try:
                channel.send(message)
            except ChannelLost:
                assert not is_open
            else:
                assert is_open
                self.sent[side].append(message)

        self.loop.run_until_complete(send())

    @rule(rounds=st.integers(1, 5))
    def run(self, rounds: int) -> None:
        """Run some rounds of the loop."""
        for _ in range(rounds):
            self.loop.run_until_complete(asyncio.sleep(0))

    @precondition(lambda self: not any(self.is_dead))
    @rule()
    def wait(self) -> None:
        """Everything that was sent arrives."""
        self.loop.run_until_complete(soon(self._has_all))
        assert [end.received for end in self.ends] == [self.sent[1], self.sent[0]]

    @precondition(lambda self: not any(self.is_dead))
    @rule(side=_sides)
    def fail(self, side: int) -> None:
        """Kill an end within the process: unsent messages are lost."""
        self.is_dead[side] = True
        self.ends[side].channel.fail("killed")

    @precondition(lambda self: not any(self.is_dead))
    @rule(side=_sides)
    def shut_down(self, side: int) -> None:
        """Kill an end from outside: the kernel closes its connection."""
        self.is_dead[side] = True
        self.sockets[side].shutdown(socket.SHUT_RDWR)

    @precondition(lambda self: not any(self.is_dead))
    @rule(side=_sides)
    def close(self, side: int) -> None:
        """Close an end in order: the other receives everything."""
        self.ends[side].channel.close()
        self.is_dead[side] = True
        other = self.ends[1 - side]
        self.loop.run_until_complete(soon(lambda: bool(other.lost)))
        if not self.sent[1 - side]:
            assert other.received == self.sent[side]

    @invariant()
    def received_is_prefix(self) -> None:
        """Messages arrive in order, without gaps and once."""
        for side, end in enumerate(self.ends):
            assert end.received == self.sent[1 - side][: len(end.received)]
            assert len(end.lost) <= 1

    def teardown(self) -> None:
        """Both ends are closed, each with one reason at most."""
        if any(self.is_dead):
            for side, end in enumerate(self.ends):
                if not self.is_dead[side]:
                    self.loop.run_until_complete(soon(lambda end=end: bool(end.lost)))  # type: ignore[misc]
                    assert not end.channel.is_open
        for end in self.ends:
            end.channel.close()
        self.loop.run_until_complete(soon(lambda: all(sock.fileno() == -1 for sock in self.sockets)))
        self.received_is_prefix()
        self.loop.close()

    def _has_all(self) -> bool:
        return all(len(end.received) == len(self.sent[1 - side]) for side, end in enumerate(self.ends))


TestTwoEnds = TwoEnds.TestCase
TestTwoEnds.settings = settings(max_examples=40, stateful_step_count=20)
