"""Run a model over all rows of the input files: two windows at a time, kept in the order of the input."""

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar, TypeVarTuple

import orjson
import pyarrow as pa

from app.offline.errors import RequestRefused, RunFailed, WrongCommand
from app.offline.files import InputFile
from app.offline.model import RunModel
from app.offline.parts import FileParts, Parts, open_parts
from app.offline.progress import Progress
from app.offline.readers import BadRow, Reader, Window, open_reader
from app.offline.requests import PreparedRows, RowRequest, RowSource
from app.offline.results import Answers, check_names, result_columns, with_results

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

WINDOW_ROWS = 4096
"""Rows that are sorted by length, and written as one part."""

# While one window ends, the next one keeps the device busy.
_WINDOWS_AT_ONCE = 2


@dataclass(frozen=True, slots=True)
class Job:
    """The command. `errors`: the file of bad rows; None: the first one ends the run. `prefix`: of result columns.

    `window_rows`: see WINDOW_ROWS.
    """

    files: list[InputFile]
    parts: Path
    source: RowSource
    errors: Path | None = None
    prefix: str = ""
    restart: bool = False
    window_rows: int = WINDOW_ROWS


@dataclass(frozen=True, slots=True)
class JobResult:
    """`rows`: of the input, `bad` of them without a result."""

    rows: int
    bad: int


async def run_job(job: Job, model: RunModel, stream: TextIO) -> JobResult:
    """Run or resume a job, and show its progress on `stream`. Raises WrongCommand, RunFailed."""
    try:
        readers = [await asyncio.to_thread(open_reader, file.path, file.format) for file in job.files]
        await _check(job, model, readers)
        with open_parts(job.parts, _identity(job, model), job.files, job.restart) as parts:
            return await _run(job, model, readers, parts, stream)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailed(f"{error.filename or job.parts}: the disk is full; free space and run it again") from error
        raise RunFailed(str(error)) from error


async def _check(job: Job, model: RunModel, readers: list[Reader]) -> None:
    """Raise WrongCommand where the columns or options fit no row at all."""
    source, description = job.source, model.description
    for reader in readers:
        source.check(reader.schema)
        check_names(reader.schema, result_columns(description, source.options.get("outputs"), job.prefix))
    if not source.column:
        _check_inputs(source, model)
        return
    options = {**source.options, "max_tokens": 1} if source.field == "prompt" else source.options
    try:
        await model.answer(orjson.dumps({source.field: "a", **options}))
    except RequestRefused as error:
        raise WrongCommand(str(error)) from error


def _check_inputs(source: RowSource, model: RunModel) -> None:
    known = model.description.inputs
    for name in source.inputs:
        if name not in known:
            raise WrongCommand(
                f'--columns: expected inputs of the model, {", ".join(known)}, got "{name}"; say INPUT=COLUMN'
            )
    missing = model.description.required - set(source.inputs)
    if missing:
        raise WrongCommand(f"--columns: expected a column for {', '.join(sorted(missing))}, got none; say INPUT=COLUMN")


def _identity(job: Job, model: RunModel) -> dict[str, object]:
    """Return what a later command must have in common to resume this run."""
    source = job.source
    return {
        "format": 1,
        "model": model.description.identity,
        "input": [[str(file.path.resolve()), file.size, file.mtime_ns] for file in job.files],
        "output": [str(file.output.absolute()) for file in job.files],
        "columns": [source.column, dict(source.inputs), job.prefix],
        "options": dict(source.options),
        "window_rows": job.window_rows,
    }


async def _run(job: Job, model: RunModel, readers: list[Reader], parts: Parts, stream: TextIO) -> JobResult:
    total = sum(reader.num_rows for reader in readers)
    resumed = sum(
        reader.num_rows if part.is_merged else min(reader.num_rows, part.num_done * job.window_rows)
        for reader, part in zip(readers, parts.files, strict=True)
    )
    if resumed:
        stream.write(f"resumed: {resumed:,} of {total:,} rows were done\n")
    progress = Progress(total, resumed, stream)
    runner = _WindowRunner(job, model)
    try:
        for file, reader, part in zip(job.files, readers, parts.files, strict=True):
            if not part.is_merged:
                await _run_file(job, runner, file, reader, part, progress)
            await _to_the_end(part.merge)
        num_bad = await _to_the_end(parts.finish, job.errors)
    finally:
        progress.close()
    return JobResult(total, num_bad)


async def _run_file(
    job: Job, runner: "_WindowRunner", file: InputFile, reader: Reader, part: FileParts, progress: Progress
) -> None:
    """Write the parts of one file from the first window on that is not done."""
    windows = reader.windows(job.window_rows, part.num_done)
    running: deque[asyncio.Task[tuple[pa.Table, list[BadRow]]]] = deque()
    try:
        while True:
            window = await asyncio.to_thread(_next, windows)
            if window is not None:
                running.append(asyncio.create_task(runner.run(window, progress)))
            if len(running) == _WINDOWS_AT_ONCE or (window is None and running):
                table, bad = await running.popleft()
                if bad and job.errors is None:
                    raise RunFailed(
                        f"{file.path}, row {min(bad).row}: {min(bad).reason}; "
                        "--errors FILE writes such rows to a file and goes on"
                    )
                await _to_the_end(part.add, table, bad)
            elif window is None:
                break
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    if file.has_changed:
        raise RunFailed(f"{file.path}: the file has changed since the run began; say --restart to begin again")


def _next(windows: Iterator[Window]) -> Window | None:
    return next(windows, None)


async def _to_the_end(work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Run work that writes files on a thread. A cancelled caller waits for it: then the folder is released."""
    future = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


class _WindowRunner:
    """Owned by the event loop."""

    def __init__(self, job: Job, model: RunModel) -> None:
        self._source = job.source
        self._prefix = job.prefix
        self._model = model
        # First in, first out: the requests of the older window are sent first.
        self._places = asyncio.Semaphore(model.concurrency)

    async def run(self, window: Window, progress: Progress) -> tuple[pa.Table, list[BadRow]]:
        """Return the rows that have a result, in the order of the input, and the others."""
        description = self._model.description
        prepared = await asyncio.to_thread(self._source.prepare, window.table, description)
        answers: Answers = []
        bad = list(prepared.bad)
        progress.add(len(window.bad) + len(bad))
        try:
            async with asyncio.TaskGroup() as group:
                for request in prepared.requests(self._model.rows_per_request):
                    await self._places.acquire()
                    group.create_task(self._answer_one(prepared, request, answers, bad, progress))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        table = await asyncio.to_thread(with_results, window.table, answers, description.outputs, self._prefix)
        return table, [*window.bad, *(BadRow(window.rows[position], reason) for position, reason in bad)]

    async def _answer_one(
        self,
        prepared: PreparedRows,
        request: RowRequest,
        answers: Answers,
        bad: list[tuple[int, str]],
        progress: Progress,
    ) -> None:
        """Run a request that has a place. If its rows are refused, each of them runs alone."""
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
            self._places.release()
        progress.add(len(positions))

    async def _answer_each(
        self, prepared: PreparedRows, positions: list[int], answers: Answers, bad: list[tuple[int, str]]
    ) -> None:
        for position in positions:
            try:
                answers.append(([position], await self._model.answer(prepared.body([position]))))
            except RequestRefused as error:
                bad.append((position, _reason(error)))


def _reason(error: RequestRefused) -> str:
    """Return why the only row of a request is refused. Its position in the request says nothing to the user."""
    return str(error).replace("text[0]: ", "text: ", 1)
