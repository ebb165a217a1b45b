"""`launch` with real processes: their names, their ends, and nothing left of them."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import uvloop

from frameworks.engine.process.client import launch as launch_module
from frameworks.engine.process.client import process_registry
from frameworks.engine.process.client.launch import LaunchOptions, launch
from tests.support.engine_processes import LINUX, end_of, options, prepared
from tests.support.loops import HANGS_AFTER_S, in_loop, soon


@in_loop
async def test_process_is_readable_in_ps() -> None:
    async with prepared("wait_for_end") as process:
        words = psutil.Process(process.pid).cmdline()
        at = words.index("-m")
        assert words[at : at + 4] == ["-m", "tests.support.engine_child", "roundhouse-engine", "minilm"]


@in_loop
async def test_process_ends_when_socket_is_closed() -> None:
    process = launch(options("wait_for_end"))
    process.connection.close()
    async with asyncio.timeout(HANGS_AFTER_S):
        reason = await process.wait_ended()
    # It may end before or after its byte is sent.
    assert reason.kind == "status"
    assert process.exit_reason is reason


@pytest.mark.parametrize(
    ("act", "kind", "detail"),
    [
        ("crash", "signal", "SIGSEGV"),
        ("abort", "signal", "SIGABRT"),
        ("kill_itself", "signal", "SIGKILL"),
        ("fail", "status", "3"),
        ("leave", "status", "0"),
    ],
)
@in_loop
async def test_exit_reason_names_end(act: str, kind: str, detail: str) -> None:
    reason = await end_of(act)
    assert (reason.kind, reason.detail) == (kind, detail)


@in_loop
async def test_crash_leaves_python_stack() -> None:
    reason = await end_of("crash")
    assert "Segmentation fault" in reason.native_output
    assert "engine_child.py" in reason.native_output
    assert "in crash" in reason.native_output


@in_loop
async def test_last_output_without_line_end_is_kept() -> None:
    assert (await end_of("fail")).native_output == "first\nlast words"


@in_loop
async def test_kill_ends_process_that_ignores_everything() -> None:
    async with prepared("ignore_end") as process:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(process.pid, number)
        process.connection.close()
        process.kill("a run took longer than max_batch_seconds")
        process.kill("another reason")
        reason = await process.wait_ended()
        assert (reason.kind, reason.detail) == ("killed", "a run took longer than max_batch_seconds")
        process.kill("after its end")
        assert process.exit_reason is reason


@LINUX
@in_loop
async def test_kill_after_crash_keeps_signal() -> None:
    process = launch(options("crash"))
    with process.connection:
        _wait_unreaped(process.pid)
        process.kill("too late")
        assert (await process.wait_ended()).detail == "SIGSEGV"


@in_loop
async def test_early_stop_signals_are_ignored() -> None:
    async with prepared("early_signals") as process:
        assert process.exit_reason is None


@in_loop
async def test_flood_holds_up_no_task() -> None:
    async with prepared("flood") as process:
        await soon(lambda: "again" in process.native_output)
        process.kill("it prints too much")
        reason = await process.wait_ended()
        assert reason.detail == "it prints too much"
        assert len(reason.native_output) <= 4096


@in_loop
async def test_kill_all_ends_every_process() -> None:
    async with prepared("ignore_end") as first, prepared("ignore_end") as second:
        assert process_registry.count() == 2
        process_registry.kill_all("the server ends")
        assert {(await each.wait_ended()).detail for each in (first, second)} == {"the server ends"}
        assert process_registry.count() == 0


@in_loop
async def test_cancelled_wait_leaves_others_waiting() -> None:
    async with prepared("ignore_end") as process:
        waiters = [asyncio.ensure_future(process.wait_ended()) for _ in range(2)]
        await asyncio.sleep(0)
        waiters[0].cancel()
        process.kill("now")
        assert (await waiters[1]).detail == "now"


@in_loop
async def test_end_is_found_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_module, "_open_pidfd", lambda pid: None)
    assert (await end_of("fail")).detail == "3"
    async with prepared("ignore_end") as process:
        process.kill("now")
        assert (await process.wait_ended()).detail == "now"
        process.kill("after its end")


def test_uvloop_finds_end() -> None:
    async def whole() -> None:
        assert (await end_of("crash")).detail == "SIGSEGV"
        async with prepared("ignore_end") as process:
            process.kill("now")
            assert (await process.wait_ended()).detail == "now"

    uvloop.run(whole())


@pytest.mark.extended
@LINUX
@in_loop
async def test_many_launches_leave_nothing() -> None:
    await end_of("leave")
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(10):
        # A module of the standard library starts fast, and does nothing.
        processes = [launch(LaunchOptions("minilm", module="keyword")) for _ in range(5)]
        assert process_registry.count() == 5
        for process in processes:
            process.connection.close()
            assert (await process.wait_ended()).detail == "0"
    # Garbage of earlier tests may close descriptors of its own.
    assert before.issuperset(os.listdir("/proc/self/fd"))
    assert process_registry.count() == 0
    assert not [each for each in psutil.Process().children() if each.status() == psutil.STATUS_ZOMBIE]


@in_loop
async def test_environment_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_SERVER", "x")
    monkeypatch.setenv("KEPT", "y")
    environment = {"ENGINE_CHILD": "wait_for_end", "SECRET_OF_SERVER": None}
    async with prepared(environment=environment) as process:
        seen = psutil.Process(process.pid).environ()
        assert "SECRET_OF_SERVER" not in seen
        assert seen["KEPT"] == "y"


@in_loop
async def test_working_directory_hides_no_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "structlog.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    async with prepared("wait_for_end") as process:
        assert process.exit_reason is None


@LINUX
@in_loop
async def test_failed_launch_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    with pytest.raises(FileNotFoundError):
        launch(options("leave"))
    # Garbage of earlier tests may close descriptors of its own.
    assert before.issuperset(os.listdir("/proc/self/fd"))


@LINUX
@in_loop
async def test_process_inherits_given_descriptors_only() -> None:
    reading, writing = os.pipe()
    process = launch(options("wait_for_end"), [writing])
    try:
        assert await asyncio.to_thread(process.connection.recv, 1) == b"r"
        inherited = {int(each) for each in os.listdir(f"/proc/{process.pid}/fd")}
        words = psutil.Process(process.pid).cmdline()
        fds = [int(each) for each in words[words.index("--fds") + 1].split(",")]
        assert fds[1:] == [writing]
        assert inherited == {0, 1, 2, *fds}
        assert os.readlink(f"/proc/{process.pid}/fd/0") == os.devnull
    finally:
        process.connection.close()
        os.close(reading)
        os.close(writing)
    assert (await process.wait_ended()).kind == "status"


@pytest.mark.extended
@LINUX
@pytest.mark.parametrize(
    ("act", "number", "status"),
    [("ignore_end", signal.SIGKILL, -signal.SIGKILL), ("wait_unprepared", signal.SIGTERM, 128 + signal.SIGTERM)],
)
def test_ended_server_leaves_no_process(act: str, number: int, status: int) -> None:
    """Killed from outside, or at its second signal; a process that is not prepared does not end with its parent."""
    words = [sys.executable, "-m", "tests.support.engine_parent", act]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(number)
    assert parent.returncode == status
    _wait_until_gone(child)


@LINUX
@in_loop
async def test_process_of_ended_server_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ended before the process asked to end with it: its parent is another one."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert (await end_of("ignore_end")).kind == "status"


def _wait_unreaped(pid: int) -> None:
    """Wait for the end, and hold up the event loop, so that it does not reap the process."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _wait_until_gone(process: psutil.Process) -> None:
    """Wait for the end; the next parent may not reap it."""
    until_s = time.monotonic() + HANGS_AFTER_S
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until_s
        time.sleep(0.01)
