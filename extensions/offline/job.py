"""Run a model over all rows of the input files, and keep the results in the order of the input."""

import asyncio
import errno
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar, TypeVarTuple

import orjson
import pyarrow as pa

from app.cli.failures import unusable
from extensions.offline.contract import RequestRefused, RunFailed, RunModel, RunModelDescription, WrongCommand
from extensions.offline.conversation_images import MESSAGES
from extensions.offline.conversations import PROMPT
from extensions.offline.input.files import InputFile
from extensions.offline.input.media_folder import SUFFIXES, MediaFolderReader
from extensions.offline.input.readers import CsvReader, JsonLinesReader, ParquetReader, RowReader
from extensions.offline.media import example_image, example_sound
from extensions.offline.output.into import Into
from extensions.offline.output.parts import RunParts, open_parts
from extensions.offline.output.results import check_names, result_columns
from extensions.offline.progress import RunProgress
from extensions.offline.requests import RowSource
from extensions.offline.windows import LocalRunner, PendingFile, WindowsRunner

_READERS: dict[str, Callable[[Path], RowReader]] = {
    "parquet": ParquetReader,
    "csv": CsvReader,
    "jsonl": JsonLinesReader,
    **{field: partial(MediaFolderReader, field=field) for field in SUFFIXES},
}


def open_reader(path: Path, file_format: str) -> RowReader:
    """Return the reader of a file. Raises WrongCommand for one that cannot be read, or has another format."""
    try:
        reader = _READERS[file_format](path)
        # Names of columns that are not UTF-8.
        names = [each.encode() for each in reader.schema.names]
    except (pa.ArrowInvalid, UnicodeError) as error:
        raise WrongCommand(f"{path}: expected a {file_format} file, got another or a damaged one: {error}") from error
    except OSError as error:
        raise WrongCommand(f"INPUT: expected a {file_format} file, got {unusable(path, error)}") from error
    if not names and reader.num_rows:
        raise WrongCommand(f"{path}: expected a {file_format} file, got none of its rows; correct the file")
    return reader


Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

_EXAMPLE_SIZE = (64, 64)
_MEMBERS = {"table": {"a": ["a"]}, "word_boxes": [["a", [0, 0, 1, 1]]]}
"""Examples of members that are no text."""

WINDOW_ROWS = 4096
"""Rows that are sorted by length, and written as one part."""


@dataclass(frozen=True, slots=True)
class RunJob:
    """The command. `errors`: the file of bad rows; None: the first one ends the run. `prefix`: of result columns.

    `window_rows`: see WINDOW_ROWS. `into`: the collection that gets the embeddings too; None: none.
    """

    files: list[InputFile]
    parts: Path
    source: RowSource
    errors: Path | None = None
    prefix: str = ""
    restart: bool = False
    window_rows: int = WINDOW_ROWS
    into: Into | None = None

    @property
    def window_options(self) -> tuple[RowSource, str, int]:
        """The source, the prefix and the rows of a window."""
        return self.source, self.prefix, self.window_rows


@dataclass(frozen=True, slots=True)
class RunResult:
    """`rows`: of the input, `bad` of them without a result."""

    rows: int
    bad: int


async def run_job(job: RunJob, model: RunModel, stream: TextIO, runner: WindowsRunner | None = None) -> RunResult:
    """Run or resume a job, and show its progress on `stream`. Raises WrongCommand, RunFailed.

    `runner`: of the windows; None runs them in this process.
    """
    try:
        readers = [await asyncio.to_thread(open_reader, file.path, file.format) for file in job.files]
        await _check(job, model, readers)
        with open_parts(job.parts, _identity(job, model), job.files, job.restart) as parts:
            return await _run(job, model, readers, parts, stream, runner)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailed(f"{error.filename or job.parts}: the disk is full; free space and run it again") from error
        if error.filename is None:
            raise RunFailed(str(error)) from error
        reason = f"got {error.strerror or type(error).__name__}; correct the path or its permissions"
        raise RunFailed(f"{error.filename}: expected a path that can be read and written, {reason}") from error


async def _check(job: RunJob, model: RunModel, readers: list[RowReader]) -> None:
    """Raise WrongCommand where the columns or options fit no row at all, or no file of bad rows can be written."""
    source, description = job.source, model.description
    if job.errors is not None and (job.errors.is_dir() or not job.errors.absolute().parent.is_dir()):
        raise WrongCommand(f"--errors: expected a file in an existing folder, got {job.errors}; correct the path")
    if job.into is not None and (description.task != "embed" or description.vectors != "dense"):
        got = (
            f"{description.vectors} vectors" if description.task == "embed" else f"one whose task is {description.task}"
        )
        raise WrongCommand(f"--into: expected a model that embeds each row as one vector, got {got}")
    for reader in readers:
        source.check(reader.schema)
        if job.into is not None:
            job.into.check(source.kept(reader.schema.empty_table()).schema)
        check_names(reader.schema, result_columns(description, source.options.get("outputs"), job.prefix))
    if source.inputs and source.field != MESSAGES:
        _check_inputs(source, model)
    if source.field != "inputs":
        await _check_options(source, model)


async def _check_options(source: RowSource, model: RunModel) -> None:
    """Send one example. A task may refuse the example itself, such as a text without a mask: that says nothing."""
    example = _example(source, model.description)
    if example is None:
        return
    options = _with_short_text(source.options) if source.field in (PROMPT, MESSAGES) else source.options
    try:
        await model.answer(orjson.dumps({source.field: example, **options}))
    except RequestRefused as error:
        if not (model.description.reads and str(error).startswith(source.field)):
            raise WrongCommand(str(error)) from error


def _with_short_text(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return options for a text of one token; those with wrong or related numbers of tokens as they are."""
    max_tokens = options.get("max_tokens", 1)
    is_valid = type(max_tokens) is int and max_tokens >= 1
    return {**options, "max_tokens": 1} if is_valid and "min_tokens" not in options else options


def _example(source: RowSource, description: RunModelDescription) -> Any:
    """Return the value of one row; None where there is no short one."""
    match source.field:
        case "image":
            return example_image(*(description.image_size or _EXAMPLE_SIZE))
        case "audio":
            return example_sound()
        case "video":
            return None
        case "messages":
            return [{"role": "user", "content": "a"}]
    return {name: _MEMBERS.get(name, "a") for name in source.inputs} if source.inputs else "a"


def _check_inputs(source: RowSource, model: RunModel) -> None:
    description = model.description
    known = list(description.inputs) if source.field == "inputs" else [*description.reads]
    for name in source.inputs:
        if name not in known:
            raise WrongCommand(
                f'--columns: expected inputs of the model, {", ".join(known)}, got "{name}"; say INPUT=COLUMN'
            )
    if source.field != "inputs":
        return
    missing = model.description.required - set(source.inputs)
    if missing:
        raise WrongCommand(f"--columns: expected a column for {', '.join(sorted(missing))}, got none; say INPUT=COLUMN")


def _identity(job: RunJob, model: RunModel) -> dict[str, object]:
    """Return what a later command must have in common to resume this run."""
    source = job.source
    into = {} if job.into is None else {"into": job.into.identity}
    return {
        **into,
        "format": 1,
        "model": model.description.identity,
        "input": [file.identity for file in job.files],
        "output": [str(file.output.absolute()) for file in job.files],
        "columns": [source.column, dict(source.inputs), job.prefix],
        **({"images": source.root and str(source.root.resolve())} if source.may_read_files else {}),
        "options": dict(source.options),
        "window_rows": job.window_rows,
    }


async def _run(
    job: RunJob,
    model: RunModel,
    readers: list[RowReader],
    parts: RunParts,
    stream: TextIO,
    runner: WindowsRunner | None,
) -> RunResult:
    total = sum(reader.num_rows for reader in readers)
    resumed = sum(
        reader.num_rows if part.is_merged else sum(_rows_of(reader, number, job.window_rows) for number in part.done)
        for reader, part in zip(readers, parts.files, strict=True)
    )
    if resumed:
        stream.write(f"resumed: {resumed:,} of {total:,} rows were done\n")
    progress = RunProgress(total, resumed, stream)
    try:
        await _run_windows(job, readers, parts, runner or LocalRunner(model, *job.window_options), progress)
        num_bad = await _to_the_end(parts.finish, job.errors)
    finally:
        progress.close()
    return RunResult(total, num_bad)


def _rows_of(reader: RowReader, number: int, window_rows: int) -> int:
    return max(0, min(window_rows, reader.num_rows - number * window_rows))


async def _run_windows(
    job: RunJob, readers: list[RowReader], parts: RunParts, runner: WindowsRunner, progress: RunProgress
) -> None:
    """Write the parts of all windows that are not done, and each output file when it has all of them."""
    counts = [-(-reader.num_rows // job.window_rows) for reader in readers]
    pending = []
    for index, (reader, part) in enumerate(zip(readers, parts.files, strict=True)):
        if part.is_merged or len(part.done) == counts[index]:
            await _to_the_end(part.merge)
        else:
            pending.append(PendingFile(index, reader, frozenset(part.done)))
    if not pending:
        return
    async with aclosing(runner.run(pending, progress.add)) as finished:
        async for index, number, table, bad in finished:
            file, part = job.files[index], parts.files[index]
            if bad and job.errors is None:
                raise RunFailed(
                    f"{file.path}, row {min(bad).row}: {min(bad).reason}; "
                    "--errors FILE writes such rows to a file and goes on"
                )
            if job.into is not None:
                # First: a window that is done is never read again.
                await job.into.fill(table, job.prefix + "embedding")
            await _to_the_end(part.add, number, table, bad)
            if len(part.done) == counts[index]:
                _check_unchanged(file)
                await _to_the_end(part.merge)
    for each in pending:
        if not parts.files[each.index].is_merged:
            raise _changed(job.files[each.index])


def _check_unchanged(file: InputFile) -> None:
    if file.has_changed:
        raise _changed(file)


def _changed(file: InputFile) -> RunFailed:
    return RunFailed(f"{file.path}: the file has changed since the run began; say --restart to begin again")


async def _to_the_end(work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Run work that writes files on a thread. A cancelled caller waits for it: then the folder is released."""
    future = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise
