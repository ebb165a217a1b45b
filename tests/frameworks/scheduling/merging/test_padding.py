"""Test padding along a sequence axis: each request gets the same outputs as alone."""

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.images.processor import ImageProcessor
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.scheduling.batch.dispatcher import Dispatcher
from frameworks.scheduling.batch.request import BatchCounts
from frameworks.scheduling.batch.worker import BatchWorker
from frameworks.scheduling.merging.rows import merge, signature_of, split_outputs, split_request
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import (
    Array,
    Batch,
    ModelSpec,
    SequenceSpec,
    TensorBatch,
    TensorType,
    TokenBatch,
    Value,
    ValueSpec,
)
from tests.frameworks.scheduling.batch.costs import trained
from tests.support.loops import in_loop

MASK = ValueSpec("mask", TensorType("int64", (-1, -1)))
SEQUENCE = SequenceSpec(1, {"x": -1, "mask": 0}, MASK, {"twice": (1,), "square": (1, 2)}, unpadded_because=None)
BATCHED = frozenset(["x", "mask", "size"])


def run(batch: Batch) -> dict[str, Value]:
    """x, mask [n, length, 2] → twice [n, length, 2], square [n, length, length], sum [n] of the real elements."""
    assert isinstance(batch, TensorBatch)
    x, mask = tensor_of(batch, "x"), tensor_of(batch, "mask")
    total = (x * mask[..., None]).sum((1, 2))
    items = [{"sum": int(number)} for number in total]
    return {"twice": 2 * x, "square": mask[:, :, None] * mask[:, None], "sum": total, "items": items}


def tensor_of(batch: Batch, name: str) -> Array:
    assert isinstance(batch, TensorBatch)
    value = batch.inputs[name]
    assert isinstance(value, np.ndarray)
    return value


def request(rows: int, length: int, mask: bool = True, first: int = 5) -> TensorBatch:
    x = (first + np.arange(rows * length * 2)).reshape(rows, length, 2)
    return TensorBatch({"x": x, "mask": np.ones((rows, length), np.int64)} if mask else {"x": x})


def shape_of(batch: Batch, sequence: SequenceSpec = SEQUENCE) -> Hashable:
    return signature_of(batch, BATCHED, sequence).shape


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9), st.booleans()), min_size=1, max_size=6))
def test_padded_batch_gives_same_outputs_as_alone(shapes: Sequence[tuple[int, int, bool]]) -> None:
    requests = [request(*shape, first=i) for i, shape in enumerate(shapes)]
    signatures = [signature_of(each, BATCHED, SEQUENCE) for each in requests]
    assert len({signature.shape for signature in signatures}) == 1
    assert all(signature.shares for signature in signatures)
    assert [(signature.rows, signature.length) for signature in signatures] == [shape[:2] for shape in shapes]
    together = merge([*requests, request(1, 1)], SEQUENCE)
    rows, lengths = [*(shape[0] for shape in shapes), 1], [*(shape[1] for shape in shapes), 1]
    for (count, length, _), each, got in zip(
        shapes, requests, split_outputs(run(together), rows, lengths, SEQUENCE), strict=False
    ):
        alone = run(TensorBatch({**request(count, length).inputs, "x": each.inputs["x"]}))
        assert got.keys() == alone.keys()
        for name, value in alone.items():
            np.testing.assert_array_equal(np.asarray(got[name]), np.asarray(value))


def test_padding_is_right_with_value_of_input() -> None:
    batch = merge([request(1, 1), request(1, 3, mask=False)], SEQUENCE)
    assert tensor_of(batch, "x")[0].tolist() == [[5, 6], [-1, -1], [-1, -1]]
    assert tensor_of(batch, "mask").tolist() == [[1, 0, 0], [1, 1, 1]]
    assert tensor_of(batch, "mask").dtype == np.int64


def test_single_request_is_not_copied() -> None:
    alone = request(2, 3)
    assert merge([alone], SEQUENCE) is alone


def test_equal_lengths_are_joined_without_padding() -> None:
    assert tensor_of(merge([request(1, 3), request(2, 3)], SEQUENCE), "x").shape == (3, 3, 2)


def test_sequence_axis_may_be_any_axis() -> None:
    sequence = SequenceSpec(2, {"x": 0.5}, None, {"y": (2,)}, unpadded_because=None)
    short, long = (TensorBatch({"x": np.ones((1, 2, length, 3), np.float16)}) for length in (1, 4))
    x = tensor_of(merge([short, long], sequence), "x")
    assert x.shape == (2, 2, 4, 3)
    assert x.dtype == np.float16
    assert (x[0, :, 1:] == 0.5).all()
    first, second = split_outputs({"y": x}, [1, 1], [1, 4], sequence)
    assert [np.asarray(own["y"]).shape for own in (first, second)] == [(1, 2, 1, 3), (1, 2, 4, 3)]
    assert np.shares_memory(np.asarray(first["y"]), x)


def test_input_order_and_missing_mask_keep_shape() -> None:
    whole = request(1, 2)
    turned = TensorBatch(dict(reversed(whole.inputs.items())))
    assert shape_of(whole) == shape_of(turned) == shape_of(request(3, 5, mask=False))


def test_lengths_differ_in_shape_without_padding() -> None:
    unpadded = replace(SEQUENCE, unpadded_because="a reason")
    assert shape_of(request(1, 2), unpadded) == shape_of(request(2, 2, mask=False), unpadded)
    assert shape_of(request(1, 2), unpadded) != shape_of(request(1, 3), unpadded)
    assert signature_of(request(4, 7), BATCHED, unpadded).length == 7


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": np.ones((1, 2, 2)), "mask": np.ones((1, 3), np.int64)},
        {"x": np.ones((2, 2, 2)), "mask": np.ones((1, 2), np.int64)},
        {"x": np.ones((1, 0, 2))},
        {"x": np.ones(1)},
        {"x": np.ones((1, 2, 2)), "other": np.ones((1, 2))},
        {"x": np.ones((0, 2, 2))},
        {},
    ],
)
def test_inconsistent_inputs_do_not_share(inputs: dict[str, Value]) -> None:
    signature = signature_of(TensorBatch(inputs), BATCHED, SEQUENCE)
    assert not signature.shares
    assert split_request(TensorBatch(inputs), signature, 1)[0] == 1


def test_other_dimensions_and_inputs_change_shape() -> None:
    one = request(1, 2)
    assert shape_of(one) != shape_of(TensorBatch({**one.inputs, "size": np.ones((1, 2))}))
    assert shape_of(one) != shape_of(TensorBatch({**one.inputs, "x": np.ones((1, 2, 3))}))
    assert shape_of(one) != shape_of(TensorBatch(one.inputs, ("twice",)))


def test_texts_ignore_sequence_axis() -> None:
    text = TokenBatch([[1, 2], [3]])
    assert signature_of(text, BATCHED, SEQUENCE) == signature_of(text, BATCHED)
    assert merge([text, text], SEQUENCE) == merge([text, text])


class Recorder:
    """Record the shapes of its batches."""

    tokenizer: TextTokenizer | None = None
    image_processor: ImageProcessor | None = None

    def __init__(self, sequence: SequenceSpec | None) -> None:
        self.spec = ModelSpec("fake", "tensor", (), (), "cpu", "int64", 0, batched_inputs=BATCHED, sequence=sequence)
        self.ran: list[tuple[int, ...]] = []

    def infer(self, batch: Batch) -> dict[str, Value]:
        self.ran.append(tensor_of(batch, "x").shape)
        return run(batch) if self.spec.sequence else {"twice": 2 * tensor_of(batch, "x")}

    def warm_up(self) -> None: ...

    def on_idle(self) -> None: ...

    def close(self) -> None: ...


async def run_all(model: Recorder, limits: BatchLimits, *requests: TensorBatch) -> None:
    worker = BatchWorker("m", model)
    dispatcher = Dispatcher("m", [worker], model.spec, limits, 1.0, BatchCounts())
    dispatcher._cost = trained(lengths=(1, 10, 100))
    try:
        results = await asyncio.gather(*(dispatcher.submit(each) for each in requests))
    finally:
        await dispatcher.close()
    for each, result in zip(requests, results, strict=True):
        np.testing.assert_array_equal(np.asarray(result["twice"]), 2 * tensor_of(each, "x"))


@in_loop
async def test_requests_of_different_lengths_share_batch() -> None:
    model = Recorder(SEQUENCE)
    await run_all(model, BatchLimits(8, max_delay_s=0.05), *(request(1, length) for length in (10, 10, 9, 9)))
    assert model.ran == [(4, 10, 2)]


@in_loop
async def test_token_budget_splits_batches_and_requests() -> None:
    model = Recorder(SEQUENCE)
    requests = [request(5, 4), request(1, 3), request(2, 30)]
    await run_all(model, BatchLimits(8, max_tokens=20, max_delay_s=0.02), *requests)
    assert sum(rows for rows, _, _ in model.ran) == 8
    assert all(rows * length <= 20 or rows == 1 for rows, length, _ in model.ran)


@in_loop
async def test_token_budget_ignores_tensors_without_sequence() -> None:
    model = Recorder(None)
    requests = [TensorBatch({"x": np.ones((3, 100), np.int64)}), TensorBatch({"x": np.ones((5, 100), np.int64)})]
    await run_all(model, BatchLimits(8, max_tokens=7, max_delay_s=0.05), *requests)
    assert model.ran == [(8, 100)]
