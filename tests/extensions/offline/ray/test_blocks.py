"""Windows as rows of a Ray dataset."""

import pyarrow as pa

from extensions.offline.columns import is_json, json_field
from extensions.offline.input.readers import BadRow, Window
from extensions.offline.ray.blocks import WindowBlock, pack, pack_failure, unpack


def test_block_keeps_window() -> None:
    schema = pa.schema([pa.field("id", pa.int32()), json_field("value")])
    table = pa.table([pa.array([1, 2], pa.int32()), pa.array(['{"a": 1}', None])], schema=schema)
    window = Window(table, [5, 7], [BadRow(6, "row: bad")])
    (block,) = unpack(pack(WindowBlock(3, 4, window)))
    assert block == WindowBlock(3, 4, window)
    assert is_json(block.window.table.schema.field("value"))


def test_joined_blocks_are_separated() -> None:
    blocks = [WindowBlock(0, i, Window(pa.table({"a": list(range(i))}), list(range(i)), [])) for i in range(3)]
    assert list(unpack(pa.concat_tables([pack(each) for each in blocks]))) == blocks


def test_failure_has_reason() -> None:
    (block,) = unpack(pack_failure(1, 2, "the disk failed"))
    assert (block.file, block.number, block.failure) == (1, 2, "the disk failed")
