"""Cutting, merging, sharing, joining: each caller gets what its request gives by itself."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from frameworks.batches.rows import (
    BatchSignature,
    Part,
    ResultAssembler,
    follow_rows,
    merge,
    signature_of,
    split_outputs,
    split_request,
)
from frameworks.errors import InvalidInput
from frameworks.types import TEXT_OUTPUT, Batch, TensorBatch, TokenBatch, Value

DTYPES = ["bool", "int8", "int64", "uint16", "float16", "float32", "float64", "object"]


def signature(batch: Batch) -> BatchSignature:
    """Every input may be batched."""
    return signature_of(batch, frozenset(["x", "y", "z", "x0", "x1", "x2"]))


def cut_of(batch: Batch, max_rows: int) -> list[Part]:
    count, parts = split_request(batch, signature(batch), max_rows)
    every = list(parts)
    assert len(every) == count
    return every


def join(answers: list[tuple[Part, dict[str, Value]]]) -> dict[str, Value]:
    """In whatever order they come."""
    joined = ResultAssembler(sum(part.rows for part, _ in answers))
    outputs: dict[str, Value] = {}
    for part, its in answers:
        outputs = joined.add(part, its)
    return outputs


def run(batch: Batch) -> dict[str, Value]:
    """A model whose outputs follow its rows: tensors of all dtypes, and a list with an item for each row."""
    if isinstance(batch, TokenBatch):
        rows = []
        every_type = batch.token_type_ids or [[0] * len(ids) for ids in batch.token_ids]
        for ids, types in zip(batch.token_ids, every_type, strict=True):
            second = [token_id for token_id, kind in zip(ids, types, strict=True) if kind]
            rows.append([len(ids), sum(ids), sum(second)])
        return {TEXT_OUTPUT: np.array(rows, np.int64).reshape(-1, 3)}
    tensors = {name: value for name, value in batch.inputs.items() if isinstance(value, np.ndarray)}
    maps: list[dict[str, object]] = [
        {name: value[row : row + 1].tolist() for name, value in tensors.items()} for row in range(batch.rows)
    ]
    return {**{f"{name} again": value for name, value in tensors.items()}, "maps": maps}


def same(one: dict[str, Value], other: dict[str, Value]) -> bool:
    assert one.keys() == other.keys()
    for name, value in one.items():
        there = other[name]
        if isinstance(value, np.ndarray):
            assert isinstance(there, np.ndarray)
            assert (value.dtype, value.shape) == (there.dtype, there.shape)
            assert value.tolist() == there.tolist()
        else:
            assert value == there
    return True


@st.composite
def tensor_requests(draw: st.DrawFn) -> list[Batch]:
    """Requests of one group: the same names, dtypes and trailing shapes, each with rows of its own."""
    dtypes = draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3))
    shapes = [draw(np_st.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)) for _ in dtypes]
    requests: list[Batch] = []
    for rows in draw(st.lists(st.integers(1, 9), min_size=1, max_size=5)):
        inputs: dict[str, Value] = {}
        for i, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True)):
            numbers = np.arange(rows * int(np.prod(shape))).reshape(rows, *shape) + 7 * len(requests)
            inputs[f"x{i}"] = numbers.astype(str).astype(object) if dtype == "object" else numbers.astype(dtype)
        requests.append(TensorBatch(inputs))
    return requests


def _texts(rows: list[list[tuple[int, int]]], are_pairs: bool) -> Batch:
    types = [[kind for _, kind in row] for row in rows]
    return TokenBatch([[token_id for token_id, _ in row] for row in rows], types if are_pairs else None)


token_rows = st.lists(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 1)), max_size=6), max_size=7)
text_requests = st.lists(st.builds(_texts, token_rows, st.booleans()), min_size=1, max_size=5)


@given(tensor_requests() | text_requests, st.integers(1, 8), st.integers(1, 6), st.randoms(use_true_random=False))
def test_a_round_trip_gives_each_request_what_it_gets_alone(
    requests: list[Batch], max_rows: int, parts_per_batch: int, chance: random.Random
) -> None:
    owned = [(i, part) for i, request in enumerate(requests) for part in cut_of(request, max_rows)]
    chance.shuffle(owned)
    answers: list[list[tuple[Part, dict[str, Value]]]] = [[] for _ in requests]
    for at in range(0, len(owned), parts_per_batch):
        together = owned[at : at + parts_per_batch]
        parts = [part for _, part in together]
        outputs = run(merge([part.batch for part in parts]))
        assert follow_rows(outputs, sum(part.rows for part in parts))
        for (i, part), got in zip(together, split_outputs(outputs, [part.rows for part in parts]), strict=True):
            answers[i].append((part, got))
    for request, its in zip(requests, answers, strict=True):
        assert same(join(its), run(request))


@given(tensor_requests() | text_requests, st.integers(1, 8))
def test_a_cut_keeps_the_order_loses_nothing_and_respects_the_bound(requests: list[Batch], max_rows: int) -> None:
    for request in requests:
        parts = cut_of(request, max_rows)
        assert [part.length for part in parts] == sorted((part.length for part in parts), reverse=True)
        parts.sort(key=lambda part: part.position)
        assert parts, "a request without a part would wait for ever"
        assert all(part.rows <= max_rows and part.length >= 1 and part.batch.rows == part.rows for part in parts)
        assert [part.position for part in parts] == [sum(p.rows for p in parts[:i]) for i in range(len(parts))]
        assert sum(part.rows for part in parts) == request.rows
        assert all(signature(part.batch).shape == signature(request).shape for part in parts)
        assert signature(request).shares


def test_a_block_of_tensors_shares_the_request_s_memory() -> None:
    x = np.arange(20).reshape(10, 2)
    for part in cut_of(TensorBatch({"x": x}), 4):
        assert isinstance(part.batch, TensorBatch)
        block = part.batch.inputs["x"]
        assert isinstance(block, np.ndarray)
        assert np.shares_memory(block, x)


def test_lengths_are_tokens_of_a_text_and_elements_of_a_row() -> None:
    assert [part.length for part in cut_of(TokenBatch([[1, 2, 3], []]), 8)] == [3, 1]
    inputs: dict[str, Value] = {"x": np.zeros((2, 3, 4)), "z": np.zeros(2)}
    assert [part.length for part in cut_of(TensorBatch(inputs), 8)] == [13]


ones = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    "other",
    [
        TensorBatch({"x": ones.astype(np.float64)}),
        TensorBatch({"x": ones[:, :2]}),
        TensorBatch({"x": ones[..., None]}),
        TensorBatch({"y": ones}),
        TensorBatch({"x": ones, "y": ones}),
        TensorBatch({"x": ones}, ("out",)),
        TokenBatch([[1]]),
    ],
)
def test_what_cannot_be_concatenated_is_of_another_group(other: Batch) -> None:
    assert signature(other).shape != signature(TensorBatch({"x": ones})).shape


def test_rows_alone_do_not_part_a_group() -> None:
    assert signature(TensorBatch({"x": ones[:1]})).shape == signature(TensorBatch({"x": ones})).shape


def test_inputs_in_another_order_are_of_the_same_group() -> None:
    one = TensorBatch({"x": ones, "y": ones[:, :1]})
    other = TensorBatch({"y": ones[:, :1], "x": ones})
    assert signature(one) == signature(other)
    both = merge([one, other])
    assert isinstance(both, TensorBatch)
    assert [np.asarray(both.inputs[name]).shape for name in "xy"] == [(4, 3), (4, 1)]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"x": ones, "y": ones}, True),
        ({"x": ones, "y": ones[:1]}, False),
        ({"x": np.float32(1) * np.ones(())}, False),
        ({"x": ones, "y": [1, 2]}, False),
        ({"x": ones, "w": ones}, False),
        ({"x": ones[:0]}, False),
        ({}, False),
    ],
)
def test_tensors_share_where_all_may_be_batched_and_have_as_many_rows(inputs: dict[str, Value], expected: bool) -> None:
    assert signature(TensorBatch(inputs)).shares is expected


def test_what_does_not_share_is_one_part() -> None:
    batch = TensorBatch({"x": np.ones((9, 2)), "w": np.ones((9, 2))})
    assert cut_of(batch, 4) == [Part(batch, 0, 9, 4)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(ones, True), (ones[:1], False), (np.ones(()), False), ([{}, {}], True), ([{}], False)],
)
def test_outputs_follow_rows_where_each_has_as_many(value: Value, expected: bool) -> None:
    assert follow_rows({"x": ones, "y": value}, 2) is expected


def test_no_texts_are_one_part_without_rows() -> None:
    [part] = cut_of(TokenBatch([]), 8)
    assert (part.rows, merge([part.batch]), merge([part.batch, part.batch])) == (0, TokenBatch([]), TokenBatch([]))


def test_texts_alone_make_a_batch_without_types() -> None:
    assert merge([TokenBatch([[1]]), TokenBatch([[2, 3]])]) == TokenBatch([[1], [2, 3]])
    pairs = TokenBatch([[4, 5]], [[0, 1]])
    assert merge([TokenBatch([[1], []]), pairs]) == TokenBatch([[1], [], [4, 5]], [[0], [], [0, 1]])


def test_one_part_is_neither_copied_nor_cut() -> None:
    request = TensorBatch({"x": ones})
    [part] = cut_of(request, 2)
    outputs: dict[str, Value] = {"y": ones, "scalar": np.ones(())}
    assert merge([part.batch]) is request
    assert split_outputs(outputs, [part.rows]) == [outputs]
    assert join([(part, outputs)]) is outputs


def test_outputs_that_do_not_follow_the_rows_of_a_part_are_refused() -> None:
    first, second = cut_of(TensorBatch({"x": np.ones((4, 1))}), 2)
    joined = ResultAssembler(4)
    joined.add(first, {"y": np.ones((2, 1))})
    with pytest.raises(InvalidInput, match="do not have one row for each input row"):
        joined.add(second, {"y": np.ones((3, 1))})
