"""Run blocks of rows: one worker of Ray Data's pool, with one engine."""

from dataclasses import dataclass

import pyarrow as pa

from app.config import LoadedSettings
from extensions.offline.errors import RunFailed, WrongCommand
from extensions.offline.input.readers import Window
from extensions.offline.model import ModelDescription
from extensions.offline.ray.blocks import Block, pack, pack_failure, unpack
from extensions.offline.ray.engine import ModelThread
from extensions.offline.requests import RowSource
from extensions.offline.windows import WindowRunner


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """The part of a job that each worker has. `description`: of the model, as the command was checked with it."""

    loaded: LoadedSettings
    name: str
    cpus: int
    source: RowSource
    prefix: str
    description: ModelDescription


class Worker:
    """Called by as many threads as windows are run at once. Errors are results: Ray would repeat and wrap them."""

    def __init__(self, job: WorkerJob) -> None:
        self._failure = ""
        try:
            thread = ModelThread(job.loaded, job.name, job.cpus)
        except RunFailed as error:
            self._failure = str(error)
            return
        self._failure = _difference(thread.model.description, job.description)
        self._thread = thread
        self._runner = thread.make(lambda: WindowRunner(thread.model, job.source, job.prefix))

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return a row of results for each row of the table."""
        return pa.concat_tables([self._run(block) for block in unpack(table)])

    def _run(self, block: Block) -> pa.Table:
        failure = block.failure or self._failure
        if failure:
            return pack_failure(block.file, block.number, failure)
        try:
            results, bad = self._thread.wait(self._runner.run(block.window, lambda _: None))
        except (RunFailed, WrongCommand) as error:
            return pack_failure(block.file, block.number, str(error))
        return pack(Block(block.file, block.number, Window(results, [], bad)))


def _difference(found: ModelDescription, expected: ModelDescription) -> str:
    """Return why the model of this node is another one. The times of equal files may differ between nodes."""
    for name in ("dtype", "files"):
        here, there = found.identity.get(name), expected.identity.get(name)
        if name == "files":
            here, there = ([entry[:2] for entry in files or []] for files in (here, there))
        if here != there:
            return f"MODEL: expected the same {name} on each node, got others; copy the model to each node"
    return ""
