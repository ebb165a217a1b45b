"""Run windows of rows: two at a time in this process, or those of a worker of Ray."""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Set
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import pyarrow as pa

from extensions.offline.contract import PreparedRows, RequestRefused, RowRequest, RunModel, UnreadableRow
from extensions.offline.input.readers import BadRow, RowReader, Window
from extensions.offline.output.results import Answers, with_results
from extensions.offline.requests import RowSource

CountRows = Callable[[int], None]
"""Counts rows that are done."""

# While one window ends, the next one keeps the device busy.
WINDOWS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class PendingFile:
    """An input file of which windows are missing. `index`: of the file in the run; `done`: windows that are not run."""

    index: int
    reader: RowReader
    done: Set[int]

    def windows(self, size: int) -> Iterator[tuple[int, Window]]:
        """Yield the missing windows with their numbers."""
        first = 0
        while first in self.done:
            first += 1
        for number, window in enumerate(self.reader.windows(size, first), first):
            if number not in self.done:
                yield number, window


class FinishedWindow(NamedTuple):
    """The rows of a window that have a result, in the order of the input, and the others."""

    file: int
    number: int
    table: pa.Table
    bad: list[BadRow]


class WindowsRunner(Protocol):
    """Runs the missing windows of a job."""

    def run(self, pending: list[PendingFile], count: CountRows) -> AsyncGenerator[FinishedWindow, None]:
        """Yield each missing window once, in any order. Raises RunFailed and WrongCommand."""
        ...


class LocalRunner:
    """Run the windows in this process, in the order of the input. Owned by the event loop."""

    def __init__(self, model: RunModel, source: RowSource, prefix: str, window_rows: int) -> None:
        self._runner = WindowRunner(model, source, prefix)
        self._window_rows = window_rows

    async def run(self, pending: list[PendingFile], count: CountRows) -> AsyncGenerator[FinishedWindow, None]:
        windows = self._windows(pending)
        running: deque[asyncio.Task[FinishedWindow]] = deque()
        try:
            while True:
                found = await asyncio.to_thread(next, windows, None)
                if found is not None:
                    running.append(asyncio.create_task(self._run_one(*found, count)))
                if len(running) == WINDOWS_AT_ONCE or (found is None and running):
                    yield await running.popleft()
                elif found is None:
                    break
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _windows(self, pending: list[PendingFile]) -> Iterator[tuple[int, int, Window]]:
        for file in pending:
            for number, window in file.windows(self._window_rows):
                yield file.index, number, window

    async def _run_one(self, file: int, number: int, window: Window, count: CountRows) -> FinishedWindow:
        return FinishedWindow(file, number, *await self._runner.run(window, count, file))


class WindowRunner:
    """Owned by the event loop."""

    def __init__(self, model: RunModel, source: RowSource, prefix: str) -> None:
        self._source = source
        self._prefix = prefix
        self._model = model
        # First in, first out: the requests of the older window are sent first.
        self._slots = asyncio.Semaphore(model.concurrency)

    async def run(self, window: Window, count: CountRows, file: int) -> tuple[pa.Table, list[BadRow]]:
        """Return the rows that have a result, in the order of the input, and the others. `file`: that of the window."""
        description = self._model.description
        prepared = await asyncio.to_thread(self._source.prepare, window.table, description, file)
        answers: Answers = []
        bad: list[tuple[int, str]] = []
        requests = prepared.requests(self._model.rows_per_request)
        count(len(window.bad))
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    # The slot first: no request is prepared ahead.
                    await self._slots.acquire()
                    request = await self._next(requests)
                    if request is None:
                        break
                    group.create_task(self._answer_one(prepared, request, answers, bad, count))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        bad += prepared.bad
        count(len(prepared.bad))
        kept = self._source.kept(window.table)
        table = await asyncio.to_thread(with_results, kept, answers, description.outputs, self._prefix)
        explain = partial(self._source.explain, window.table)
        return table, [*window.bad, *(BadRow(window.rows[at], explain(at, reason)) for at, reason in bad)]

    async def _next(self, requests: Iterator[RowRequest]) -> RowRequest | None:
        """Return the next request, which holds the slot that was acquired; None after the last one."""
        request = None
        try:
            request = await asyncio.to_thread(next, requests, None)
        finally:
            if request is None:
                self._slots.release()
        return request

    async def _answer_one(
        self,
        prepared: PreparedRows,
        request: RowRequest,
        answers: Answers,
        bad: list[tuple[int, str]],
        count: CountRows,
    ) -> None:
        """Run a request that holds a slot. If its rows are refused, each of them runs alone."""
        positions = request.positions
        try:
            try:
                answers.append((positions, await self._model.answer(request.body)))
            except RequestRefused as error:
                if len(positions) == 1:
                    bad.append((positions[0], _reason(error)))
                else:
                    await self._answer_each(prepared, positions, answers, bad)
        finally:
            self._slots.release()
        count(len(positions))

    async def _answer_each(
        self, prepared: PreparedRows, positions: list[int], answers: Answers, bad: list[tuple[int, str]]
    ) -> None:
        for position in positions:
            try:
                body = await asyncio.to_thread(prepared.body, [position])
                answers.append(([position], await self._model.answer(body)))
            except (RequestRefused, UnreadableRow) as error:
                bad.append((position, _reason(error)))


def _reason(error: RequestRefused | UnreadableRow) -> str:
    """Return why the only row of a request is refused. Its position in the request says nothing to the user."""
    return re.sub(r"^(text|image|audio|video)\[0\](?=[:.])", r"\1", str(error))
