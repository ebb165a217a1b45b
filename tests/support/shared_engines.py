"""An engine process with an owner and further clients, all in the process of the test."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from frameworks.core.backoff import RestartBackoff
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.engine.contract import RunCounts
from frameworks.engine.process.client import process_registry
from frameworks.engine.process.client.client_link import ClientLink
from frameworks.engine.process.client.launch import LaunchOptions
from frameworks.engine.process.client.process_engine import ProcessEngine
from frameworks.engine.process.client.running_process import RunningProcess, start_process
from frameworks.engine.process.link import Loss, Started
from frameworks.engine.registries import RegistrySettings
from frameworks.types import TensorBatch
from tests.support.engine_hosts import CPU, SETTINGS
from tests.support.loops import soon
from tests.support.models.onnx_graphs import add, save


class NoDelay(RestartBackoff):
    """Restarts at once, and holds requests until then."""

    expects_restart_soon = True

    def start_in_s(self) -> float:
        return 0.0


class Attached:
    """A client of the process of an owner, in this process. `losses`: what the owner has reported."""

    def __init__(self, owner: ProcessEngine, losses: "asyncio.Queue[Loss]") -> None:
        self.owner = owner
        self.losses = losses
        self.links: list[ClientLink] = []
        self.killed: list[str] = []
        self.counts = RunCounts()
        self.engine = ProcessEngine(SETTINGS, self.counts, self._start, NoDelay())

    async def _start(self, engine: ProcessEngine) -> Started:
        await soon(lambda: self.owner.outage is None)
        assert self.owner.started is not None
        link = ClientLink(self.owner.attach(), "adder", self.losses.get, self._kill)
        await link.open(engine)
        self.links.append(link)
        return self.owner.started._replace(link=link)

    def _kill(self, label: str, reason: str) -> None:
        self.killed.append(label)


class Shared:
    """An owner with a real process, and further clients."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes: list[RunningProcess] = []
        self.clients: list[Attached] = []
        self.counts = RunCounts()
        self.owner = ProcessEngine(SETTINGS, self.counts, self._start, NoDelay())
        self.owner.is_shared = True
        self.owner.on_lost = self._report

    @property
    def engines(self) -> list[ProcessEngine]:
        """The engine of the owner, then those of the clients."""
        return [self.owner, *(client.engine for client in self.clients)]

    @property
    def rows_counted(self) -> int:
        """Rows of the batches that the owner has counted."""
        return sum(rows * count for rows, count in self.counts.batches.sizes.items())

    @property
    def num_leases(self) -> int:
        """Tensors in the shared memory of all clients."""
        links = [link for client in self.clients for link in client.links]
        return sum(each.num_leases for each in [*self.processes, *links])

    def kill(self) -> None:
        """Kill the latest process from outside."""
        with suppress(ProcessLookupError):
            os.kill(self.processes[-1].pid, signal.SIGKILL)

    async def attach(self) -> Attached:
        client = Attached(self.owner, asyncio.Queue())
        self.clients.append(client)
        await client.engine.open()
        return client

    async def _start(self, engine: ProcessEngine) -> Started:
        process = await start_process(LaunchOptions("adder"))
        self.processes.append(process)
        settings = RegistrySettings(max_model_size=None, cache_dir=self.path.parent, ageing_ms=1000.0)
        await process.measure("onnx", OnnxModelEntry(name="adder", path=self.path), self.path, settings)
        return await process.load(CPU, SETTINGS, engine)

    def _report(self, loss: Loss) -> None:
        for client in self.clients:
            client.losses.put_nowait(loss)


@asynccontextmanager
async def shared(folder: Path, clients: int = 2) -> AsyncIterator[Shared]:
    """Start a process with an owner and further clients. It has ended after the block."""
    whole = Shared(save(add(), folder / "adder.onnx"))
    await whole.owner.open()
    try:
        for _ in range(clients):
            await whole.attach()
        yield whole
    finally:
        for client in whole.clients:
            client.engine.abort("the test ends")
        whole.owner.abort("the test ends")
        await soon(lambda: not process_registry.count())


def pair(value: float, rows: int = 1) -> TensorBatch:
    a = np.full((rows, 4), value, np.float32)
    return TensorBatch({"a": a, "b": a})


async def ask(engine: ProcessEngine, value: float, rows: int = 1) -> float:
    """Return value + value."""
    outputs: Any = await engine.submit(pair(value, rows))
    return float(outputs["sum"][-1, -1])
