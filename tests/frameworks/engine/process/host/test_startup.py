"""`startup.prepare` in a real process: what the system says about the process."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.engine_processes import LINUX, end_of, prepared
from tests.support.loops import in_loop

MIB = 1024 * 1024


@in_loop
async def test_niceness_is_added() -> None:
    async with prepared("wait_for_end", niceness=7) as process:
        assert psutil.Process(process.pid).nice() == psutil.Process().nice() + 7


@in_loop
async def test_default_niceness_is_that_of_server() -> None:
    async with prepared("wait_for_end") as process:
        assert psutil.Process(process.pid).nice() == psutil.Process().nice()


@LINUX
@in_loop
async def test_process_is_named_for_model() -> None:
    async with prepared("wait_for_end") as process:
        assert _proc(process.pid, "comm") == "rh:minilm\n"


@LINUX
@in_loop
async def test_cpus_are_those_given() -> None:
    cpu = max(os.sched_getaffinity(0))
    async with prepared("wait_for_end", cpus=frozenset([cpu])) as process:
        assert os.sched_getaffinity(process.pid) == {cpu}
    async with prepared("wait_for_end") as process:
        assert os.sched_getaffinity(process.pid) == os.sched_getaffinity(0)


@LINUX
@in_loop
async def test_unknown_cpu_ends_process() -> None:
    reason = await end_of("wait_for_end", cpus=frozenset([100_000]))
    assert reason.detail == "1"
    assert "sched_setaffinity" in reason.native_output


@LINUX
@in_loop
async def test_limits_are_those_given() -> None:
    async with prepared("wait_for_end", max_process_memory_bytes=512 * MIB) as process:
        limits = psutil.Process(process.pid)
        assert limits.rlimit(psutil.RLIMIT_DATA) == (512 * MIB, 512 * MIB)
        assert limits.rlimit(psutil.RLIMIT_CORE) == (0, 0)


@LINUX
@in_loop
async def test_allocation_beyond_limit_raises() -> None:
    reason = await end_of("fill_memory", max_process_memory_bytes=512 * MIB)
    assert (reason.kind, reason.detail) == ("status", "1")
    assert reason.native_output.endswith("MemoryError")
    assert reason.is_out_of_memory


@LINUX
@in_loop
async def test_stop_signals_are_ignored() -> None:
    async with prepared("wait_for_end") as process:
        status = _proc(process.pid, "status")
        masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Sig"))
        stop = 1 << 1 | 1 << 14  # SIGINT and SIGTERM
        assert int(masks["SigIgn"], 16) & stop == stop
        assert int(masks["SigBlk"], 16) & stop == 0


@LINUX
@in_loop
async def test_prepare_imports_no_framework() -> None:
    async with prepared("wait_for_end") as process:
        maps = _proc(process.pid, "maps")
        assert "ctypes" in maps
        for name in ("libtorch", "onnxruntime", "pydantic_core", "numpy"):
            assert name not in maps


def test_prepare_is_imported_without_log_library() -> None:
    code = "import sys, frameworks.engine.process.host.startup; print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules = set(printed.split())
    assert "frameworks.engine.process.wire.arguments" in modules
    assert not modules & {"structlog", "asyncio", "numpy", "pydantic", "subprocess"}


def _proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()
