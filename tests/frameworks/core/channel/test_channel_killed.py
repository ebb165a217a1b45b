import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from frameworks.core.channel.messages import ChannelLost
from frameworks.core.tenants import DEFAULT_TENANT
from frameworks.engine.process.wire.messages import Answer, Infer
from frameworks.engine.process.wire.serialization import answer_from_plain, request_to_plain, tenant_to_plain
from frameworks.types import TensorBatch
from tests.support.channels import End, bounded
from tests.support.loops import soon
from tests.support.wire_values import is_same

pytestmark = pytest.mark.extended


@pytest.fixture
def child() -> Iterator[tuple["subprocess.Popen[bytes]", socket.socket]]:
    ours, theirs = socket.socketpair()
    with theirs:
        words = [sys.executable, "-m", "tests.support.echo_engine", str(theirs.fileno())]
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
    yield process, ours
    process.kill()
    process.wait()
    ours.close()


def _request(number: int, size: int) -> Infer:
    batch = TensorBatch({"x": np.full(size, number, np.int64)})
    return Infer(number, request_to_plain(batch), 5, tenant_to_plain(DEFAULT_TENANT), 0.0)


@pytest.mark.parametrize(("size", "answered"), [(4, 0), (4, 50), (4, 51), (100_000, 1), (100_000, 20)])
def test_killed_engine_ends_channel_once(
    child: tuple["subprocess.Popen[bytes]", socket.socket], size: int, answered: int
) -> None:
    process, ours = child

    async def whole() -> None:
        end = End()
        await end.channel.open(ours)
        number = 0
        # A window of requests, so that the process dies with some that are sent and some that it answers.
        while len(end.received) < answered:
            while number < len(end.received) + 20:
                end.channel.send(_request(number, size))
                number += 1
            await asyncio.sleep(0)
        end.channel.send(_request(number, size))
        await asyncio.sleep(0)
        process.send_signal(signal.SIGKILL)
        await soon(lambda: bool(end.lost))
        assert len(end.lost) == 1
        with pytest.raises(ChannelLost):
            end.channel.send(_request(number, size))
        assert answered <= len(end.received) <= number + 1
        _check(end.received, size)

    asyncio.run(bounded(whole()))


def _check(answers: list[Any], size: int) -> None:
    for number, answer in enumerate(answers):
        assert isinstance(answer, Answer)
        assert answer.id == number
        outputs = answer_from_plain(answer.answer)
        assert is_same(outputs, {"x": np.full(size, number, np.int64)})


def test_engine_ends_when_server_closes(child: tuple["subprocess.Popen[bytes]", socket.socket]) -> None:
    process, ours = child

    async def whole() -> None:
        end = End()
        await end.channel.open(ours)
        end.channel.send(_request(0, 4))
        await end.received_count(1)
        end.channel.close()

    asyncio.run(bounded(whole()))
    assert process.wait(60) == 0
