"""Read the missing windows in tasks of Ray Data: one task for each file, on the machine that has the files."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from extensions.offline.errors import RunFailed, WrongCommand
from extensions.offline.input.files import InputFile
from extensions.offline.ray.blocks import Block, pack, pack_failure
from extensions.offline.windows import PendingFile


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
    """Yield the windows of a file. Ray takes the next one when the last one has room in its memory."""
    number = 0
    try:
        for number, window in file.windows(window_rows):
            yield pack(Block(file.index, number, window))
    except (RunFailed, WrongCommand, OSError, pa.ArrowException) as error:
        yield pack_failure(file.index, number, str(error))
