"""Real engine processes with a real ONNX model: answers, crashes, damaged files, and nothing left behind."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from frameworks.core.channel.descriptors import socket_pair
from frameworks.core.errors import InvalidModel
from frameworks.engine.process.client.launch import EngineProcess, LaunchOptions, launch
from frameworks.engine.process.exit_reason import ExitReason
from frameworks.engine.process.host.model_source import ModelSource
from frameworks.engine.process.wire.messages import Answer, Close, Closed, Load, LoadFailed, Needs, Ping, Pong
from frameworks.engine.process.wire.serialization import answer_from_plain, error_from_plain, spec_from_plain
from frameworks.types import TensorBatch
from memory.garbage import pause_collections
from tests.support.engine_hosts import CPU, SETTINGS, HostLink, arenas, measured
from tests.support.engine_processes import LINUX
from tests.support.loops import HANGS_AFTER_S, in_loop, soon
from tests.support.models.onnx_graphs import add, save

MIB = 1024**2


@asynccontextmanager
async def started() -> AsyncIterator[tuple[HostLink, EngineProcess]]:
    """Start a process without a model. It has ended after the block, and no tensor is left."""
    requests, answers = arenas()
    clients, theirs = socket_pair()
    with clients, theirs:
        process = launch(LaunchOptions("adder"), (requests.fd, answers.fd, theirs.fileno()))
    link = HostLink(requests, answers)
    await link.channel.open(process.connection)
    try:
        yield link, process
    finally:
        process.kill("end of the test")
        await ended(process)
        link.channel.close()
        link.tensors.close()
    assert not psutil.pid_exists(process.pid)


async def ended(process: EngineProcess) -> ExitReason:
    async with asyncio.timeout(HANGS_AFTER_S):
        return await process.wait_ended()


def model(folder: Path) -> Any:
    """Write a model; return its first message."""
    return measured(save(add(), folder / "adder.onnx"))


def pair(rows: int) -> TensorBatch:
    a = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    return TensorBatch({"a": a, "b": a + 1})


async def total(link: HostLink, rows: int) -> Any:
    """Return the sums of a request."""
    link.infer(pair(rows))
    answer = answer_from_plain((await link.next(Answer)).answer)
    assert isinstance(answer, dict)
    return answer["sum"]


def test_measure_resumes_collections(tmp_path: Path) -> None:
    pause_collections()
    try:
        ModelSource().measure(model(tmp_path))
        assert gc.isenabled()
    finally:
        gc.enable()


@in_loop
async def test_process_answers_like_model(tmp_path: Path) -> None:
    async with started() as (link, process):
        loaded = await link.load(measure=model(tmp_path))
        spec = spec_from_plain(loaded.spec)
        assert (spec.framework, [each.name for each in spec.outputs]) == ("onnx", ["sum", "product"])
        # The memory is that of the whole process.
        assert MIB < loaded.memory_bytes < 1024 * MIB
        assert 0 < loaded.warm_up_s < loaded.load_s
        for rows in (1, 3, 8192, 2):
            x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
            np.testing.assert_array_equal(await total(link, rows), x + x + 1)
        await soon(lambda: link.num_leases == 0)
        link.send(Close())
        await link.next(Closed)
        reason = await ended(process)
        assert (reason.kind, reason.detail) == ("status", "0")


@in_loop
async def test_killed_process_spares_others(tmp_path: Path) -> None:
    async with started() as (link, process), started() as (other, _):
        await link.load(measure=model(tmp_path))
        await other.load(measure=model(tmp_path))
        await total(link, 1)
        os.kill(process.pid, signal.SIGSEGV)
        reason = await ended(process)
        assert (reason.kind, reason.detail) == ("signal", "SIGSEGV")
        assert "Segmentation fault" in reason.native_output
        await soon(lambda: link.lost is not None)
        assert len(await total(other, 8192)) == 8192


@pytest.mark.parametrize("keep", [0, 40], ids=["empty", "cut"])
@in_loop
async def test_damaged_file_fails_load(keep: int, tmp_path: Path) -> None:
    async with started() as (link, process):
        file = save(add(), tmp_path / "adder.onnx")
        file.write_bytes(file.read_bytes()[:keep])
        link.send(measured(file))
        await soon(lambda: bool(link.messages))
        if link.of(Needs):
            link.send(Load(CPU, SETTINGS))
        failed = await link.next(LoadFailed)
        assert isinstance(error_from_plain(failed.error), InvalidModel)
        link.send(Ping(1))
        await link.next(Pong)
        assert process.exit_reason is None


@LINUX
@in_loop
async def test_all_threads_have_given_priority(tmp_path: Path) -> None:
    async with started() as (link, process):
        await link.load(measure=model(tmp_path))
        await total(link, 1)
        low = min(psutil.Process().nice() + LaunchOptions("minilm").niceness, 19)
        found = set()
        for thread in os.listdir(f"/proc/{process.pid}/task"):
            with suppress(ProcessLookupError):  # that of the load ends
                found.add(os.getpriority(os.PRIO_PROCESS, int(thread)))
        assert found == {low}


@LINUX
@in_loop
async def test_process_maps_no_framework_of_others(tmp_path: Path) -> None:
    async with started() as (link, process):
        await link.load(measure=model(tmp_path))
        mapped = " ".join(each.path for each in psutil.Process(process.pid).memory_maps())
        assert "onnxruntime" in mapped
        assert "/torch/" not in mapped


@in_loop
async def test_lost_server_ends_process(tmp_path: Path) -> None:
    async with started() as (link, process):
        await link.load(measure=model(tmp_path))
        link.channel.close()
        reason = await ended(process)
        assert (reason.kind, reason.detail) == ("status", "0")
