"""Models with an address that several workers share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from frameworks.core.addresses import SourceAddress
from frameworks.core.settings.entries import Isolation, OnnxModelEntry
from frameworks.models.versions.downloads import Downloads
from frameworks.sources.store import SourceStore
from tests.support.loops import in_loop, soon
from tests.support.models.onnx_crashes import negated
from tests.support.replicated import Replicated, replicated
from tests.support.source_folders import SourceFolder


def squared() -> onnx.ModelProto:
    """Return a graph with the inputs and outputs of `negated` that computes x * x."""
    graph = negated()
    del graph.graph.node[:]
    graph.graph.node.append(helper.make_node("Mul", ["x", "x"], ["y"]))
    return graph


@asynccontextmanager
async def fetching(folder: Path, isolation: Isolation, **more: Any) -> AsyncIterator[tuple[Replicated, SourceFolder]]:
    """Start two workers, and register the model "m" of a source."""
    source = SourceFolder(folder / "source")
    source.write("org/m", graph=negated().SerializeToString())
    async with replicated(folder) as whole:
        store = SourceStore(folder / "cache", 1 << 20, source.open, ())
        whole.manager.residency.fetch = Downloads(lambda: store).fetch
        address = SourceAddress("hf", "org/m")
        whole.manager.register("onnx", OnnxModelEntry(name="m", path=address, isolation=isolation, **more), folder)
        yield whole, source


async def answers(whole: Replicated) -> list[int]:
    return [await replica.ask(5) for replica in whole.replicas.values()]


@pytest.mark.parametrize("isolation", ["none", "process"])
@in_loop
async def test_new_content_reaches_every_worker(isolation: Isolation, tmp_path: Path) -> None:
    async with fetching(tmp_path, isolation) as (whole, source):
        await whole.load()
        assert await answers(whole) == [-5, -5]
        source.write("org/m", graph=squared().SerializeToString())
        slot = await whole.load()
        assert await answers(whole) == [25, 25]
        paths = [replica.models.slot("m").active.path for replica in whole.replicas.values()]
        assert paths == [slot.active.path] * 2
        # A worker that starts later loads the same files.
        await whole.replicas[0].die()
        await soon(lambda: len(whole.workers.links) == 1)
        assert await (await whole.join(0)).ask(5) == 25


@in_loop
async def test_request_of_worker_fetches_lazy_model(tmp_path: Path) -> None:
    async with fetching(tmp_path, "none", load="lazy") as (whole, source):
        await whole.publisher.applied()
        assert source.listings == []
        assert await whole.replicas[1].ask(4) == -4
        assert source.listings == ["hf://org/m"]
