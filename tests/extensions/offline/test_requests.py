"""Rows of a window as requests, and their results as columns."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extensions.offline.columns import json_field
from extensions.offline.contract import Generated, RunFailed, RunModelDescription, WrongCommand
from extensions.offline.output.results import check_names, result_columns, with_results
from extensions.offline.requests import RowSource, TextRows
from frameworks.types import ClassifyAnswer, EmbedAnswer

TEXTS = RowSource("text", {}, "text", {"truncate": False})
IMAGES = RowSource("", {"image": "pixels"}, "inputs", {})


def images(shape: tuple[int, ...] | None = (-1, 2, 2)) -> RunModelDescription:
    return RunModelDescription("m", "tensor", {"image": shape}, {"out": (-1, 2)}, {})


@given(st.lists(st.none() | st.text() | st.integers(), max_size=30), st.integers(1, 7))
def test_each_text_is_in_one_request(texts: list[Any], max_rows: int) -> None:
    rows = TextRows(texts, "text", {"top_k": 2})
    requests = list(rows.requests(max_rows))
    sent = [position for request in requests for position in request.positions]
    assert sorted(sent + [position for position, _ in rows.bad]) == list(range(len(texts)))
    assert all(len(request.positions) <= max_rows for request in requests)
    assert [len(texts[i]) for i in sent] == sorted((len(texts[i]) for i in sent), reverse=True)
    for positions, body in requests:
        content = json.loads(body)
        found = content["text"] if isinstance(content["text"], list) else [content["text"]]
        assert (found, content["top_k"]) == ([texts[i] for i in positions], 2)


def test_prompts_have_requests_of_their_own() -> None:
    bodies = [json.loads(request.body) for request in TextRows(["aa", "b"], "prompt", {}).requests(8)]
    assert bodies == [{"prompt": "aa"}, {"prompt": "b"}]


def test_text_of_other_bytes_is_bad() -> None:
    broken = pa.Array.from_buffers(pa.string(), 2, [*pa.array(["ab", "c"]).buffers()[:2], pa.py_buffer(b"\xffbc")])
    rows = TEXTS.prepare(pa.table({"text": broken}), images())
    assert rows.bad == [(0, "text: expected UTF-8, got other bytes")]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1.0, 2, 3, 4], [5.0, 6, 7, 8]], pa.list_(pa.float32(), 4)),
        pa.array([[1.0, 2, 3, 4], [5.0, 6, 7, 8]]),
        pa.array([[[1.0, 2], [3, 4]], [[5, 6], [7, 8]]]),
        pa.array(["[1,2,3,4]", "[[5,6],[7,8]]"]),
    ],
)
def test_tensor_columns_get_declared_shape(column: pa.Array) -> None:
    rows = IMAGES.prepare(pa.table({"pixels": column}), images())
    (request,) = rows.requests(8)
    assert json.loads(request.body) == {"inputs": {"image": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]}}


def test_tensors_of_equal_shape_share_requests() -> None:
    column = pa.array(["[1]", "[1,2]", "[3]", "null", "[[1],2]", '{"a": 1}'])
    table = pa.Table.from_arrays([column], schema=pa.schema([json_field("pixels")]))
    rows = IMAGES.prepare(table, images((-1, -1)))
    assert [request.positions for request in rows.requests(8)] == [[1], [0, 2]]
    assert [position for position, _ in rows.bad] == [3, 4, 5]


def test_fixed_batch_takes_single_rows() -> None:
    rows = IMAGES.prepare(pa.table({"pixels": pa.array([[1.0], [2.0]])}), images((1, 1)))
    assert [request.positions for request in rows.requests(8)] == [[0], [1]]


@pytest.mark.parametrize(
    ("source", "column", "message"),
    [(TEXTS, "other", "expected one of other"), (TEXTS, "text", "of int64"), (IMAGES, "x", 'got "pixels"')],
)
def test_wrong_columns_are_refused(source: RowSource, column: str, message: str) -> None:
    with pytest.raises(WrongCommand, match=message):
        source.check(pa.schema([pa.field(column, pa.int64())]))


def test_results_follow_order_of_input() -> None:
    table = pa.table({"id": [10, 11, 12]})
    answers: Any = [
        ([2], EmbedAnswer(np.ones((1, 2), np.float32), 1)),
        ([0], EmbedAnswer(np.zeros((1, 2), np.float32), 1)),
    ]
    result = with_results(table, answers, {}, "my_")
    assert result.to_pylist() == [{"id": 10, "my_embedding": [0, 0]}, {"id": 12, "my_embedding": [1, 1]}]
    assert result.schema.field("my_embedding").type == pa.list_(pa.float32(), 2)


def test_labels_and_generated_texts_become_columns() -> None:
    labels: Any = [([0], ClassifyAnswer([[("good", 0.75), ("bad", 0.25)]]))]
    (row,) = with_results(pa.table({"id": [1]}), labels, {}, "").to_pylist()
    assert row == {"id": 1, "label": "good", "score": 0.75, "labels": ["good", "bad"], "scores": [0.75, 0.25]}
    (row,) = with_results(pa.table({"id": [1]}), [([0], Generated("so", "stop", 3))], {}, "").to_pylist()
    assert row == {"id": 1, "generated": "so", "finish_reason": "stop", "tokens_generated": 3}


def test_outputs_become_typed_columns() -> None:
    answer: Any = {
        "fixed": np.arange(8, dtype=np.float32).reshape(2, 2, 2),
        "free": np.array([[1], [2]]),
        "label": np.array(["a", "b"], object),
        "map": [{"a": 1}, {"a": 2}],
    }
    result = with_results(pa.table({"id": [1, 2]}), [([1, 0], answer)], {"fixed": (-1, 2, 2), "free": (-1, -1)}, "")
    assert result.to_pylist()[1] == {"id": 2, "fixed": [[0, 1], [2, 3]], "free": [1], "label": "a", "map": '{"a":1}'}
    assert [str(result.schema.field(name).type) for name in ("free", "label")] == ["list<item: int64>", "string"]


def test_output_without_rows_fails_run() -> None:
    with pytest.raises(RunFailed, match="a value for each row"):
        with_results(pa.table({"id": [1, 2]}), [([0, 1], {"mean": np.array([1.0])})], {}, "")


def test_result_column_must_be_new() -> None:
    names = result_columns(images(), None, "")
    assert names == ["out"]
    with pytest.raises(WrongCommand, match="--prefix"):
        check_names(pa.schema([pa.field("out", pa.int64())]), names)
