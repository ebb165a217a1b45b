"""Test splitting, merging and assembling: each request gets the same outputs as alone."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from frameworks.core.errors import InvalidInput
from frameworks.scheduling.merging.rows import (
    BatchSignature,
    Part,
    ResultAssembler,
    follow_rows,
    merge,
    signature_of,
    split_outputs,
    split_request,
)
from frameworks.types import TEXT_OUTPUT, Batch, TensorBatch, TextSpec, TokenBatch, Value

DTYPES = ["bool", "int8", "int64", "uint16", "float16", "float32", "float64", "object"]


def signature(batch: Batch) -> BatchSignature:
    """Return the signature where every input may be batched."""
    return signature_of(batch, frozenset(["x", "y", "z", "x0", "x1", "x2"]))


def test_batch_without_names_has_all_outputs() -> None:
    """Requests that name all outputs share batches with those that name none."""
    inputs: dict[str, Value] = {"x": np.zeros((2, 3), np.float32)}
    shapes = [
        signature_of(TensorBatch(inputs, names), frozenset(["x"]), all_outputs=("y", "z")).shape
        for names in (None, ("y", "z"), ("y",))
    ]
    assert shapes[0] == shapes[1] != shapes[2]


def parts_of(batch: Batch, max_rows: int) -> list[Part]:
    count, parts = split_request(batch, signature(batch), max_rows)
    every = list(parts)
    assert len(every) == count
    return every


@pytest.mark.parametrize(("max_rows", "counts"), [(3, [3, 3, 1]), (7, [7]), (8, [7])])
def test_texts_without_padding_stay_together(max_rows: int, counts: list[int]) -> None:
    batch = TokenBatch([[1] * (1 + number % 4) for number in range(7)], unpooled=list(range(7)))
    text = TextSpec(max_tokens=8, pads=False)
    count, lazy = split_request(batch, signature_of(batch, frozenset(), text=text), max_rows)
    parts = list(lazy)
    assert ([part.rows for part in parts], len(parts)) == (counts, count)
    assert merge([part.batch for part in parts]) == batch
    assert are_equal(join([(part, run(part.batch)) for part in reversed(parts)]), run(batch))


def join(answers: list[tuple[Part, dict[str, Value]]]) -> dict[str, Value]:
    """Assemble parts in the given order."""
    joined = ResultAssembler(sum(part.rows for part, _ in answers))
    outputs: dict[str, Value] = {}
    for part, its in answers:
        outputs = joined.add(part, its)
    return outputs


def run(batch: Batch) -> dict[str, Value]:
    """Run a model whose outputs have one entry for each row: tensors of all dtypes, and a list."""
    if isinstance(batch, TokenBatch):
        rows = []
        every_type = batch.token_type_ids or [[0] * len(ids) for ids in batch.token_ids]
        for ids, types in zip(batch.token_ids, every_type, strict=True):
            second = [token_id for token_id, kind in zip(ids, types, strict=True) if kind]
            rows.append([len(ids), sum(ids), sum(second)])
        return {TEXT_OUTPUT: np.array(rows, np.int64).reshape(-1, 3)}
    assert isinstance(batch, TensorBatch)
    tensors = {name: value for name, value in batch.inputs.items() if isinstance(value, np.ndarray)}
    maps: list[dict[str, object]] = [
        {name: value[row : row + 1].tolist() for name, value in tensors.items()} for row in range(batch.rows)
    ]
    return {**{f"{name} again": value for name, value in tensors.items()}, "maps": maps}


def are_equal(one: dict[str, Value], other: dict[str, Value]) -> bool:
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
    """Draw requests of equal shape: same names, dtypes and trailing dimensions, different rows."""
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
def test_round_trip_gives_same_outputs_as_alone(
    requests: list[Batch], max_rows: int, parts_per_batch: int, chance: random.Random
) -> None:
    owned = [(i, part) for i, request in enumerate(requests) for part in parts_of(request, max_rows)]
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
        assert are_equal(join(its), run(request))


@given(tensor_requests() | text_requests, st.integers(1, 8))
def test_split_keeps_order_rows_and_limit(requests: list[Batch], max_rows: int) -> None:
    for request in requests:
        parts = parts_of(request, max_rows)
        assert [part.length for part in parts] == sorted((part.length for part in parts), reverse=True)
        parts.sort(key=lambda part: part.position)
        assert parts, "a request without parts would never end"
        assert all(part.rows <= max_rows and part.length >= 1 and part.batch.rows == part.rows for part in parts)
        assert [part.position for part in parts] == [sum(p.rows for p in parts[:i]) for i in range(len(parts))]
        assert sum(part.rows for part in parts) == request.rows
        assert all(signature(part.batch).shape == signature(request).shape for part in parts)
        assert signature(request).shares


def test_tensor_block_shares_memory_of_request() -> None:
    x = np.arange(20).reshape(10, 2)
    for part in parts_of(TensorBatch({"x": x}), 4):
        assert isinstance(part.batch, TensorBatch)
        block = part.batch.inputs["x"]
        assert isinstance(block, np.ndarray)
        assert np.shares_memory(block, x)


def test_length_is_tokens_or_elements_per_row() -> None:
    assert [part.length for part in parts_of(TokenBatch([[1, 2, 3], []]), 8)] == [3, 1]
    inputs: dict[str, Value] = {"x": np.zeros((2, 3, 4)), "z": np.zeros(2)}
    assert [part.length for part in parts_of(TensorBatch(inputs), 8)] == [13]


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
def test_unmergeable_batches_have_different_shapes(other: Batch) -> None:
    assert signature(other).shape != signature(TensorBatch({"x": ones})).shape


def test_number_of_rows_keeps_shape() -> None:
    assert signature(TensorBatch({"x": ones[:1]})).shape == signature(TensorBatch({"x": ones})).shape


def test_input_order_keeps_shape() -> None:
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
def test_tensors_share_if_batched_with_equal_rows(inputs: dict[str, Value], expected: bool) -> None:
    assert signature(TensorBatch(inputs)).shares is expected


def test_unshared_request_is_one_part() -> None:
    batch = TensorBatch({"x": np.ones((9, 2)), "w": np.ones((9, 2))})
    assert parts_of(batch, 4) == [Part(batch, 0, 9, 4)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(ones, True), (ones[:1], False), (np.ones(()), False), ([{}, {}], True), ([{}], False)],
)
def test_outputs_follow_rows_if_counts_match(value: Value, expected: bool) -> None:
    assert follow_rows({"x": ones, "y": value}, 2) is expected


def test_request_without_texts_is_one_part() -> None:
    [part] = parts_of(TokenBatch([]), 8)
    assert (part.rows, merge([part.batch]), merge([part.batch, part.batch])) == (0, TokenBatch([]), TokenBatch([]))


def test_merged_texts_without_pairs_have_no_types() -> None:
    assert merge([TokenBatch([[1]]), TokenBatch([[2, 3]])]) == TokenBatch([[1], [2, 3]])
    pairs = TokenBatch([[4, 5]], [[0, 1]])
    assert merge([TokenBatch([[1], []]), pairs]) == TokenBatch([[1], [], [4, 5]], [[0], [], [0, 1]])


def test_single_part_is_not_copied() -> None:
    request = TensorBatch({"x": ones})
    [part] = parts_of(request, 2)
    outputs: dict[str, Value] = {"y": ones, "scalar": np.ones(())}
    assert merge([part.batch]) is request
    assert split_outputs(outputs, [part.rows]) == [outputs]
    assert join([(part, outputs)]) is outputs


def test_outputs_with_wrong_rows_are_refused() -> None:
    first, second = parts_of(TensorBatch({"x": np.ones((4, 1))}), 2)
    joined = ResultAssembler(4)
    joined.add(first, {"y": np.ones((2, 1))})
    with pytest.raises(InvalidInput, match="do not have one row for each input row"):
        joined.add(second, {"y": np.ones((3, 1))})
