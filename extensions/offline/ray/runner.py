"""Run the missing windows of a job as one Ray dataset: read, run by a pool of workers, received by the command."""

import asyncio
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TextIO

import pyarrow as pa
import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext, ExecutionResources
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from app.config import LoadedSettings
from extensions.offline.contract import RunFailed, WrongCommand
from extensions.offline.input.files import InputFile
from extensions.offline.job import RunJob
from extensions.offline.ray.blocks import WindowBlock, pack, pack_failure, unpack
from extensions.offline.ray.cluster import alive_nodes
from extensions.offline.ray.model import RayModel
from extensions.offline.ray.placement import Limits, WorkerPlacement, place_workers
from extensions.offline.ray.worker import Worker, WorkerJob
from extensions.offline.windows import WINDOWS_AT_ONCE, CountRows, FinishedWindow, PendingFile


class WindowsDatasource(Datasource):
    """The missing windows of all files; each is a block of one row."""

    def __init__(self, pending: list[PendingFile], files: list[InputFile], window_rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._pending = pending
        self._files = files
        self._window_rows = window_rows

    @property
    def supports_distributed_reads(self) -> bool:
        """Whether other machines may read. Only the machine of the command needs the files."""
        return False

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(self, parallelism: int, *arguments: Any, **options: Any) -> list[ReadTask]:
        return [
            ReadTask(
                partial(_read, file, self._window_rows),
                BlockMetadata(None, self._files[file.index].size, None, None),
            )
            for file in self._pending
        ]


def _read(file: PendingFile, window_rows: int) -> Iterator[pa.Table]:
    """Yield the windows of a file. Ray takes the next one when the last one fits into its memory."""
    number = 0
    try:
        for number, window in file.windows(window_rows):
            yield pack(WindowBlock(file.index, number, window))
    except (RunFailed, WrongCommand, OSError, pa.ArrowException) as error:
        yield pack_failure(file.index, number, str(error))


# A window that ends its worker each time is the cause.
_MAX_RETRIES = 5
# Blocks that Ray Data holds: rows for the workers, and results for the command.
_BLOCK_BYTES = 512 * 1024**2
_READS_AT_ONCE = 2
_END_TIMEOUT_S = 30.0
_END_INTERVAL_S = 0.01


class RayRunner:
    """A Runner. Owned by the event loop."""

    def __init__(self, job: RunJob, model: RayModel, loaded: LoadedSettings, limits: Limits, stream: TextIO) -> None:
        self._job = job
        self._model = model
        self._loaded = loaded
        self._limits = limits
        self._stream = stream

    async def run(self, pending: list[PendingFile], count: CountRows) -> AsyncGenerator[FinishedWindow, None]:
        placement = place_workers(self._model.needs, alive_nodes(), self._limits)
        self._stream.write(f"ray: {placement.describe()}\n")
        self._model.close()
        results = _Results(self._dataset(pending, placement))
        try:
            while (table := await results.next()) is not None:
                for file, number, window, failure in unpack(table):
                    if failure is not None:
                        raise RunFailed(failure)
                    count(min(self._job.window_rows, pending_rows(pending, file, number, self._job.window_rows)))
                    yield FinishedWindow(file, number, window.table, window.bad)
        finally:
            await asyncio.to_thread(results.close)

    def _dataset(self, pending: list[PendingFile], placement: WorkerPlacement) -> "ray.data.Dataset":
        context = DataContext.get_current()
        context.execution_options.resource_limits = ExecutionResources.for_limits(object_store_memory=_BLOCK_BYTES)
        job, description = self._job, self._model.description
        windows = ray.data.read_datasource(
            WindowsDatasource(pending, job.files, job.window_rows),
            override_num_blocks=len(pending),
            concurrency=min(_READS_AT_ONCE, len(pending)),
            num_cpus=0,
        )
        work = WorkerJob(self._loaded, description.name, placement.cpus, job.source, job.prefix, description)
        with warnings.catch_warnings():
            # Restarts have no other option yet.
            warnings.filterwarnings("ignore", "`ray_remote_args` is deprecated", DeprecationWarning)
            return self._mapped(windows, work, placement)

    def _mapped(self, windows: "ray.data.Dataset", work: WorkerJob, placement: WorkerPlacement) -> "ray.data.Dataset":
        return windows.map_batches(
            Worker,
            fn_constructor_args=[work],
            batch_size=None,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(
                min_size=1,
                max_size=placement.workers,
                initial_size=placement.workers,
                max_tasks_in_flight_per_actor=WINDOWS_AT_ONCE,
                max_concurrent_calls_per_actor=WINDOWS_AT_ONCE,
                enable_true_multi_threading=True,
            ),
            num_cpus=placement.cpus,
            num_gpus=placement.gpus or None,
            memory=placement.memory_bytes,
            max_restarts=-1,
            max_task_retries=_MAX_RETRIES,
        )


def pending_rows(pending: list[PendingFile], file: int, number: int, window_rows: int) -> int:
    """Return the rows of the input from this window on."""
    reader = next(each.reader for each in pending if each.index == file)
    return max(0, reader.num_rows - number * window_rows)


class _Results:
    """Fetch the blocks of a dataset in a thread of its own, which is ahead of the event loop.

    `Dataset.iter_batches` fetches in a thread that nothing waits for. It may ask for a block after the end of
    ray.shutdown(), and Ray then ends the command with status 1. So all threads are known here, and end with `close`.
    """

    def __init__(self, dataset: "ray.data.Dataset") -> None:
        self._dataset = dataset
        self._executor: Any = None
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[pa.Table | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(2)
        self._is_closed = False
        # A daemon: Ray may never end a call that waits for a node.
        self._thread = threading.Thread(target=self._iterate, name="ray-results", daemon=True)
        self._thread.start()

    async def next(self) -> pa.Table | None:
        """Return the next block; None after the last one. Raises RunFailed."""
        result = await self._queue.get()
        self._room.release()
        if isinstance(result, Exception):
            kind = type(result).__name__
            reason = str(result).strip().splitlines()
            raise RunFailed(f"ray: {kind}: {reason[-1] if reason else ''}; see the logs of Ray") from result
        return result

    def close(self) -> None:
        """End the dataset, whatever it waits for, and its threads."""
        self._is_closed = True
        self._room.release()
        end_s = time.monotonic() + _END_TIMEOUT_S
        while self._are_threads_alive() and time.monotonic() < end_s:
            if self._executor is not None:
                # Without effect before its start, and after the first call. A step that is running may make it fail.
                with suppress(Exception):
                    self._executor.shutdown(force=True)
            time.sleep(_END_INTERVAL_S)

    def _are_threads_alive(self) -> bool:
        return self._thread.is_alive() or (self._executor is not None and self._executor.is_alive())

    def _iterate(self) -> None:
        result: pa.Table | Exception | None = None
        try:
            self._executor = self._dataset._create_executor()
            bundles: Iterable[Any] = self._dataset._build_bundle_iterator(self._executor)
            for bundle in bundles:
                for reference in bundle.block_refs:
                    if not self._is_closed:
                        self._put(ray.get(reference))
        except Exception as error:  # noqa: BLE001 - of any part of Ray Data; raised where the block is awaited
            result = error
        self._put(result)

    def _put(self, result: pa.Table | Exception | None) -> None:
        self._room.acquire()
        if self._is_closed:
            self._room.release()  # for the next result
        else:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, result)
