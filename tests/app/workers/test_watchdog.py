"""A worker whose event loop does not answer is ended."""

import asyncio

from app.observability.background import background_task
from app.workers.messages import CheckLoop
from app.workers.watchdog import Watchdog, answer_checks
from frameworks.models.replicas.control import Workers
from tests.app.workers.links import linked
from tests.support.loops import in_loop, soon


@in_loop
async def test_watchdog_ends_silent_worker_once() -> None:
    workers, killed, asked = Workers(), list[int](), list[CheckLoop]()
    async with linked(workers) as links:
        answer_checks(await links.connect(0))
        (await links.connect(1)).handle(CheckLoop, asked.append)
        async with background_task(Watchdog(workers, killed.append, 0.001, max_missed=20).run()):
            await soon(lambda: bool(killed))
            await asyncio.sleep(0.05)
    assert killed == [1]
    assert len(asked) == 1


@in_loop
async def test_watchdog_checks_replaced_worker() -> None:
    workers, killed, asked = Workers(), list[int](), list[CheckLoop]()
    async with linked(workers) as links:
        silent = await links.connect(1)
        silent.handle(CheckLoop, asked.append)
        async with background_task(Watchdog(workers, killed.append, 0.001, max_missed=20).run()):
            await soon(lambda: bool(killed))
            await links.lose(silent)
            (await links.connect(1)).handle(CheckLoop, asked.append)
            await soon(lambda: len(killed) == 2)
    assert len(asked) == 2
