"""Clients of a real engine process: its owner, and others that have attached."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from frameworks.errors import ModelFailed
from tests.support.loops import in_loop, soon
from tests.support.shared_engines import ask, shared


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


@in_loop
async def test_killed_process_is_lost_to_all(tmp_path: Path) -> None:
    async with shared(tmp_path) as whole:
        os.kill(whole.processes[0].pid, signal.SIGKILL)
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
