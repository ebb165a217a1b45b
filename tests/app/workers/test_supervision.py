"""Workers are started, replaced and drained."""

import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from app.http.listener.sockets import BALANCES
from tests.app.workers.fake_forks import supervised
from tests.support.loops import in_loop, pass_time, settle, soon, task


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let the process open only so many more descriptors."""
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(count + 1)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    for each in free:
        os.close(each)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@in_loop
async def test_all_ready_when_every_worker_serves() -> None:
    async with supervised() as whole:
        assert whole.counts.running == 0
        whole.supervision.start()
        first, second = [await whole.nth(number, 0) for number in range(2)]
        first.serve()
        await soon(lambda: whole.counts.running == 1)
        assert not whole.supervision.all_ready.done()
        second.serve()
        await whole.supervision.all_ready
        assert whole.counts.running == 2
        assert {number: link.pid for number, link in whole.links.links.items()} == {0: first.pid, 1: second.pid}


@in_loop
async def test_ended_worker_is_replaced_at_once() -> None:
    async with supervised() as whole:
        first, _ = await whole.serving()
        with capture_logs() as logs:
            whole.server.end(first, -signal.SIGSEGV)
            assert whole.counts.running == 1
            second = await whole.nth(0, 1)
            assert whole.links.links[0].pid == second.pid
            second.serve()
            await soon(lambda: whole.counts.running == 2)
        ended, replaced = logs
        assert (ended["event"], ended["worker"], ended["worker_pid"], ended["reason"], ended["restart_in_s"]) == (
            *("worker ended", 0, first.pid, "SIGSEGV"),
            0.0,
        )
        assert (replaced["event"], replaced["worker_pid"]) == ("worker replaced", second.pid)
        assert whole.released == [0]
        assert whole.counts.restarts == {"sigsegv": 1}
        assert len(whole.server.forked[1]) == 1


@in_loop
async def test_worker_that_ends_in_starts_is_delayed() -> None:
    async with supervised() as whole:
        await whole.serving()
        whole.server.end(whole.server.forked[0][0], 1)
        whole.server.end(await whole.nth(0, 1), 1)
        await settle()
        assert len(whole.server.forked[0]) == 2
        # The kernel gives new connections to the other worker.
        assert [whole.is_listening(number) for number in range(2)] == [not BALANCES, True]
        pass_time(1.0)
        await whole.nth(0, 2)
        assert whole.is_listening(0)
        assert whole.counts.restarts == {"exit_status": 2}


@in_loop
async def test_killed_worker_is_replaced() -> None:
    async with supervised() as whole:
        _, second = await whole.serving()
        whole.supervision.kill(1)
        await whole.nth(1, 1)
        assert whole.server.killed == [second.pid]
        assert whole.counts.restarts == {"sigkill": 1}


@in_loop
async def test_process_with_lost_link_is_ended() -> None:
    async with supervised() as whole:
        first, _ = await whole.serving()
        first.link.close()
        await whole.nth(0, 1)
        assert whole.server.killed == [first.pid]
        assert whole.counts.restarts == {"sigkill": 1}


@in_loop
async def test_link_lost_before_pid_is_known() -> None:
    async with supervised() as whole:
        whole.server.reports_forks = False
        whole.supervision.start()
        first = await whole.nth(0, 0)
        first.link.close()
        await soon(lambda: 0 not in whole.links.links)
        assert whole.server.killed == []
        whole.server.report_forked(first)
        await whole.nth(0, 1)
        assert whole.server.killed == [first.pid]


@in_loop
async def test_failed_fork_is_tried_again() -> None:
    async with supervised() as whole:
        first, _ = await whole.serving()
        whole.server.failure = errno.EAGAIN
        with capture_logs() as logs:
            whole.server.end(first, 0)
            await soon(lambda: whole.counts.restarts["not_forked"] == 1)
        assert [(log["reason"], log["worker_pid"], log["restart_in_s"]) for log in logs] == [
            ("0", first.pid, 0.0),
            ("EAGAIN", 0, 1.0),
        ]
        whole.server.failure = 0
        pass_time(1.0)
        (await whole.nth(0, 1)).serve()
        await soon(lambda: whole.counts.running == 2)


@pytest.mark.parametrize("count", [0, 2], ids=["none", "one pair"])
@in_loop
async def test_missing_descriptors_delay_the_start(count: int) -> None:
    async with supervised() as whole:
        first, _ = await whole.serving()
        whole.server.failure = errno.EAGAIN
        whole.server.end(first, 0)
        await soon(lambda: whole.counts.restarts["not_forked"] == 1)
        await settle()
        whole.server.failure = 0
        with descriptors_left(count), capture_logs() as logs:
            pass_time(1.0)
            await soon(lambda: whole.counts.restarts["not_forked"] == 2)
        assert [(log["reason"], log["restart_in_s"]) for log in logs] == [("EMFILE", 2.0)]
        pass_time(2.0)
        await whole.nth(0, 1)


@in_loop
async def test_drained_workers_end_and_stay_ended() -> None:
    async with supervised() as whole:
        workers = await whole.serving()
        await whole.supervision.drain(3.0)
        await settle()
        assert [each.drain_timeouts_s for each in workers] == [[3.0], [3.0]]
        assert [len(starts) for starts in whole.server.forked.values()] == [1, 1]
        assert whole.server.alive == []
        assert whole.released == [0, 1]
        assert (whole.counts.running, whole.counts.restarts, whole.server.killed) == (0, {}, [])


@in_loop
async def test_drain_kills_worker_that_stays() -> None:
    async with supervised() as whole:
        first, second = await whole.serving()
        second.ends_by_order = False
        draining = task(whole.supervision.drain(3.0))
        await soon(lambda: not first.is_alive and bool(second.drain_timeouts_s))
        await settle()
        assert second.is_alive
        assert not draining.done()
        pass_time(3.0 + 60.0)
        await draining
        assert second.pid in whole.server.killed
        assert whole.server.alive == []


@in_loop
async def test_drain_cancels_delayed_start() -> None:
    async with supervised() as whole:
        await whole.serving()
        whole.server.end(whole.server.forked[0][0], 1)
        whole.server.end(await whole.nth(0, 1), 1)
        await whole.supervision.drain(3.0)
        pass_time(100.0)
        await settle()
        assert [len(whole.server.forked[number]) for number in range(2)] == [2, 1]


@in_loop
async def test_start_during_drain_forks_nothing() -> None:
    async with supervised() as whole:
        whole.supervision.start()
        await whole.supervision.drain(3.0)
        await soon(lambda: not whole.links.links)
        assert whole.server.forked == {}


@in_loop
async def test_lost_fork_server_ends_supervision() -> None:
    async with supervised() as whole:
        await whole.serving()
        whole.server.lose()
        await whole.supervision.fork_server_ended
        await whole.supervision.drain(3.0)
        assert whole.server.killed == []
        assert [len(starts) for starts in whole.server.forked.values()] == [1, 1]


@in_loop
async def test_fork_server_lost_while_draining() -> None:
    async with supervised() as whole:
        for each in await whole.serving():
            each.ends_by_order = False
        draining = task(whole.supervision.drain(3.0))
        await settle()
        assert not draining.done()
        whole.server.lose()
        await draining
        assert not whole.supervision.fork_server_ended.done()
