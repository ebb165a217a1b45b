"""Clients of a real engine process: its owner, and others that have attached."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from frameworks.core.errors import ModelFailed
from tests.support.engine_processes import LINUX
from tests.support.loops import in_loop, soon
from tests.support.shared_engines import Attached, ask, shared


@in_loop
async def test_clients_get_their_own_answers(tmp_path: Path) -> None:
    async with shared(tmp_path) as whole:
        asked = [
            (engine, float(10 * i + j), rows)
            for i, engine in enumerate(whole.engines)
            for j, rows in [(1, 1), (2, 8192)]
        ]
        answers = await asyncio.gather(*(ask(*each) for each in asked))
        assert answers == [2 * value for _, value, _ in asked]
        # The owner gets the counts of all.
        await soon(lambda: whole.rows_counted == 3 * 8193)
        assert not any(client.counts.batches.sizes for client in whole.clients)
        await soon(lambda: whole.num_leases == 0)


@pytest.mark.extended
@in_loop
async def test_killed_process_is_lost_to_all(tmp_path: Path) -> None:
    async with shared(tmp_path) as whole:
        whole.kill()
        await soon(lambda: all(engine.outage is not None for engine in whole.engines))
        assert {engine.outage for engine in whole.engines} == {whole.owner.outage}
        with pytest.raises(ModelFailed, match="SIGKILL"):
            whole.owner.attach()
        # Requests are held until the process serves again.
        assert await asyncio.gather(*(ask(engine, 3.0) for engine in whole.engines)) == [6.0] * 3
        assert len(whole.processes) == 2
        assert [client.counts.restarts for client in whole.clients] == [{"sigkill": 1}] * 2


@in_loop
async def test_aborted_client_spares_others(tmp_path: Path) -> None:
    async with shared(tmp_path) as whole:
        first, second = whole.clients
        first.engine.abort("the test ends it")
        assert await ask(second.engine, 2.0) == 4.0
        await second.engine.close()
        assert await ask(whole.owner, 2.0) == 4.0
        third = await whole.attach()
        assert await ask(third.engine, 5.0, 8192) == 10.0
        assert whole.owner.outage is None


@pytest.mark.extended
@LINUX
@in_loop
async def test_killed_client_spares_others(tmp_path: Path) -> None:
    async with shared(tmp_path, clients=1) as whole:
        pid = whole.processes[0].pid
        assert await ask(whole.clients[0].engine, 1.0) == 2.0
        before = num_of_connections(pid)
        descriptors = whole.owner.attach()
        words = [sys.executable, "-m", "tests.support.engine_client", *map(str, descriptors)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, pass_fds=descriptors) as process:  # noqa: ASYNC220
            for each in descriptors:
                os.close(each)
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == b"answered\n"
            # Its requests are in progress.
            answers = [asyncio.ensure_future(ask(whole.clients[0].engine, 3.0, 8192)) for _ in range(8)]
            process.kill()
            assert await asyncio.gather(*answers) == [6.0] * 8
        assert process.returncode == -signal.SIGKILL
        await soon(lambda: num_of_connections(pid) <= before)
        assert await ask(whole.owner, 4.0) == 8.0


@pytest.mark.extended
@LINUX
@in_loop
async def test_connections_leave_no_descriptor(tmp_path: Path) -> None:
    async with shared(tmp_path, clients=0) as whole:
        pids = os.getpid(), whole.processes[0].pid
        before = [num_of_connections(pid) for pid in pids]
        for _ in range(3):
            client = await whole.attach()
            assert await ask(client.engine, 1.0, 8192) == 2.0
            assert all(num_of_connections(pid) > count for pid, count in zip(pids, before, strict=True))
            await client.engine.close()
        # Garbage of earlier tests may close descriptors of its own.
        await soon(lambda: all(num_of_connections(pid) <= count for pid, count in zip(pids, before, strict=True)))


def num_of_connections(pid: int) -> int:
    """Return how many local sockets and blocks of shared memory a process has open.

    Threads of libraries open files and sockets to other machines at any moment; ONNX Runtime has one.
    """
    blocks = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            blocks += str(path.readlink()).startswith("/memfd:")
    return blocks + len(psutil.Process(pid).net_connections("unix"))


@pytest.mark.extended
@in_loop
async def test_process_lost_before_it_accepts(tmp_path: Path) -> None:
    async with shared(tmp_path, clients=1) as whole:
        pid = whole.processes[0].pid
        os.kill(pid, signal.SIGSTOP)
        late = await whole.attach()
        answer = asyncio.ensure_future(ask(late.engine, 5.0))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        assert await answer == 10.0
        assert late.counts.restarts == {"sigkill": 1}
        with pytest.raises(ModelFailed, match="SIGKILL"):
            whole.processes[0].attach()


@pytest.mark.extended
@settings(max_examples=2)
@given(
    st.lists(
        st.tuples(st.sampled_from(["ask", "ask", "ask", "attach", "close", "abort", "kill"]), st.integers(0, 100)),
        min_size=10,
        max_size=25,
    )
)
def test_clients_survive_any_order_of_kills(actions: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder, capture_logs():
        _run_actions(Path(folder), actions)


@in_loop
async def _run_actions(folder: Path, actions: list[tuple[str, int]]) -> None:
    async with shared(folder) as whole:
        answers: dict[asyncio.Future[float], tuple[float, Attached | None]] = {}
        ended: list[Attached] = []
        for action, choice in actions:
            if action == "kill":
                whole.kill()
            elif action == "attach":
                await soon(lambda: whole.owner.outage is None)
                with suppress(ModelFailed):  # it was killed meanwhile
                    await whole.attach()
            elif action == "ask":
                clients = [None, *whole.clients]
                client = clients[choice % len(clients)]
                engine = whole.owner if client is None else client.engine
                value = float(len(answers))
                answers[asyncio.ensure_future(ask(engine, value, 1 + 100 * choice))] = (value, client)
            elif whole.clients:
                client = whole.clients.pop(choice % len(whole.clients))
                ended.append(client)
                if action == "close":
                    await client.engine.close()
                else:
                    client.engine.abort("the test ends it")
            await asyncio.sleep(0)
        outcomes = await asyncio.gather(*answers, return_exceptions=True)
        for outcome, (value, client) in zip(outcomes, answers.values(), strict=True):
            if isinstance(outcome, BaseException):
                assert client in ended or isinstance(outcome, ModelFailed)
            else:
                assert outcome == 2 * value
        await soon(lambda: whole.owner.outage is None and whole.num_leases == 0)
