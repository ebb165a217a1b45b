"""Results of a dataset: their order, their errors, and the end of all threads."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
import ray
import ray.data

from extensions.offline.contract import RunFailed
from extensions.offline.ray.runner import _Results
from tests.support.loops import in_loop, soon


class FakeExecutor(threading.Thread):
    """Run until it is shut down. As in Ray Data, that has no effect before the start."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._is_shut_down = threading.Event()
        self.is_stopping = threading.Event()
        """Its last step ends when this is set."""

    def run(self) -> None:
        self._is_shut_down.wait()
        self.is_stopping.wait()

    def shutdown(self, force: bool) -> None:
        if self.ident is not None:
            self._is_shut_down.set()

    def hold(self) -> None:
        """Wait for a block until the executor is shut down, as the iterator of a dataset does."""
        self._is_shut_down.wait()


class FakeDataset:
    """Yield these blocks, then wait for its end. `begin`: called before the executor starts."""

    def __init__(self, blocks: Iterable[object] = (), begin: Any = lambda: None) -> None:
        self._blocks, self._begin = blocks, begin
        self.executor = FakeExecutor()

    def _create_executor(self) -> FakeExecutor:
        return self.executor

    def _build_bundle_iterator(self, executor: FakeExecutor) -> Iterator[Any]:
        self._begin()
        executor.start()
        for block in self._blocks:
            if isinstance(block, Exception):
                raise block
            yield SimpleNamespace(block_refs=[block])
        executor.hold()


def results_of(dataset: FakeDataset) -> _Results:
    return _Results(dataset)  # type: ignore[arg-type]


@patch.object(ray, "get", lambda reference: reference)
@in_loop
async def test_blocks_follow_in_order() -> None:
    dataset = FakeDataset(range(5))
    dataset.executor.is_stopping.set()
    results = results_of(dataset)
    assert [await results.next() for _ in range(5)] == list(range(5))
    await asyncio.to_thread(results.close)


@in_loop
async def test_error_of_any_kind_fails_run() -> None:
    dataset = FakeDataset([KeyError("11")])
    dataset.executor.is_stopping.set()
    results = results_of(dataset)
    with pytest.raises(RunFailed, match="ray: KeyError: '11'; see the logs of Ray"):
        await results.next()
    await asyncio.to_thread(results.close)


@in_loop
async def test_close_waits_for_last_step() -> None:
    """Ray's own wait for the thread of the executor is short."""
    dataset = FakeDataset()
    results = results_of(dataset)
    await soon(dataset.executor.is_alive)
    closing = asyncio.ensure_future(asyncio.to_thread(results.close))
    await soon(lambda: not results._thread.is_alive())
    assert not closing.done()
    dataset.executor.is_stopping.set()
    await closing
    assert not dataset.executor.is_alive()


@patch.object(ray, "get", lambda reference: reference)
@in_loop
async def test_close_ends_thread_with_unread_blocks() -> None:
    dataset = FakeDataset(range(9))
    dataset.executor.is_stopping.set()
    results = results_of(dataset)
    await soon(lambda: results._queue.qsize() == 2)
    await asyncio.to_thread(results.close)
    assert not results._thread.is_alive()
    assert not dataset.executor.is_alive()


@in_loop
async def test_close_before_start_ends_executor() -> None:
    begin = threading.Event()
    dataset = FakeDataset(begin=begin.wait)
    dataset.executor.is_stopping.set()
    results = results_of(dataset)
    closing = asyncio.ensure_future(asyncio.to_thread(results.close))
    await soon(lambda: results._is_closed)
    begin.set()
    await closing
    assert not results._thread.is_alive()
    assert not dataset.executor.is_alive()


@pytest.mark.ray
@pytest.mark.extended
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@in_loop
async def test_no_other_thread_fetches_blocks() -> None:
    """Such a thread may ask for a block after the end of ray.shutdown(), which ends the command with status 1."""
    get, threads, before = ray.get, set(), set(threading.enumerate())

    def noting_get(references: Any, **options: Any) -> Any:
        result = get(references, **options)
        if isinstance(result, pa.Table):
            threads.add(threading.current_thread().name)
        return result

    with patch.object(ray, "get", noting_get):
        dataset = ray.data.range(64, override_num_blocks=16).map_batches(lambda table: table, batch_format="pyarrow")
        results = _Results(dataset)
        assert await results.next() is not None
        await asyncio.to_thread(results.close)
    assert threads == {"ray-results"}
    assert not {each.name for each in set(threading.enumerate()) - before} & {"ray-results", "iter_threaded"}
