"""A window as one row of a Ray dataset: Ray never splits or converts it, and the files may have different columns."""

from collections.abc import Iterator
from typing import NamedTuple

import orjson
import pyarrow as pa

from extensions.offline.input.readers import BadRow, Window

SCHEMA = pa.schema(
    [
        ("file", pa.int64()),
        ("number", pa.int64()),
        ("table", pa.large_binary()),
        ("rows", pa.large_binary()),
        ("bad", pa.large_binary()),
        ("failure", pa.string()),
    ]
)
"""`table`: an Arrow stream. `rows`: JSON, the number of each row. `bad`: JSON pairs of row and reason. `failure`: why
the run must end; then there is no table."""


class WindowBlock(NamedTuple):
    """Rows of a window before their run (`rows` has their numbers), or after it."""

    file: int
    number: int
    window: Window
    failure: str | None = None


def pack(block: WindowBlock) -> pa.Table:
    """Return a table of one row."""
    window = block.window
    columns = [
        pa.array([block.file], pa.int64()),
        pa.array([block.number], pa.int64()),
        _write(window.table),
        pa.array([orjson.dumps(window.rows)], pa.large_binary()),
        pa.array([orjson.dumps([list(each) for each in window.bad])], pa.large_binary()),
        pa.array([block.failure], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def pack_failure(file: int, number: int, reason: str) -> pa.Table:
    """Return the block that ends the run."""
    return pack(WindowBlock(file, number, Window(pa.table({}), [], []), reason))


def unpack(table: pa.Table) -> Iterator[WindowBlock]:
    """Yield the block of each row. Their tables refer to the memory of `table`."""
    for batch in table.to_batches():
        for i in range(batch.num_rows):
            row = {name: batch.column(name)[i] for name in SCHEMA.names}
            content = pa.ipc.open_stream(row["table"].as_buffer()).read_all()
            bad = [BadRow(number, reason) for number, reason in orjson.loads(row["bad"].as_py())]
            window = Window(content, orjson.loads(row["rows"].as_py()), bad)
            yield WindowBlock(row["file"].as_py(), row["number"].as_py(), window, row["failure"].as_py())


def _write(table: pa.Table) -> pa.Array:
    """Return a column of one value, the stream of the table, which is not copied."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content = sink.getvalue()
    offsets = pa.array([0, content.size], pa.int64()).buffers()[1]
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, content])
