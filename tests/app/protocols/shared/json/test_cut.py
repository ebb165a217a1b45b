"""A body whose array is cut out gives the request or the error of the whole body."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.protocols.native.codec import NativeCodec, NativeRequest
from app.protocols.open_inference.infer_codec import InferCodec
from app.protocols.shared.codec import Target
from app.protocols.shared.json import cut as json_cut
from app.protocols.shared.json import reading
from app.protocols.shared.json.cut import cut
from frameworks.core.errors import RoundhouseError
from frameworks.types import TensorBatch
from tests.app.protocols.decoding import decode_body, same
from tests.app.protocols.native.specs import SPECS, find_spec
from tests.app.protocols.strategies import mutated, nests, numbers, requests, scalars
from tests.support.json_numbers import loaded_reader

READER = loaded_reader()
PADDING = " " * reading.SHORT_BYTES
models = st.sampled_from(["float32", "float64", "float16", "int64", "uint64", "int8", "matrix", "fixed", "bool"])


@contextmanager
def cutting() -> Iterator[None]:
    """Cut bodies of any length."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_cut, "reader", READER)
        patch.setattr(reading, "SHORT_BYTES", 0)
        yield


def decoded(codec: Any, model: str, body: bytes) -> Any:
    try:
        return decode_body(codec, body, Target(model), find_spec)
    except RoundhouseError as error:
        return type(error), str(error)


def check(model: str, body: bytes, codec: Any = None) -> Any:
    """Decode with and without the cut, compare both, and return the request."""
    codec = codec or NativeCodec()
    whole = decoded(codec, model, body)
    with cutting():
        made = decoded(codec, model, body)
    assert type(made) is type(whole)
    if not isinstance(made, NativeRequest) or not isinstance(made.request, TensorBatch):
        assert made == whole or hasattr(made, "request")
        return made
    assert isinstance(whole.request, TensorBatch)
    assert made._replace(request=None) == whole._replace(request=None)  # type: ignore[arg-type]
    assert made.request.output_names == whole.request.output_names
    for name, value in whole.request.inputs.items():
        assert same(made.request.inputs[name], value)
    return made


@given(models, st.one_of(nests(numbers), nests(st.integers(-2, 2)), nests(scalars)), st.booleans())
@settings(max_examples=200)
@example("float32", [[1], [[2]]], True)
@example("float32", [[1e39], [2]], True)
@example("int8", [[1000], [2]], False)
@example("float32", [["\x1anumbers"]], True)
def test_cut_nested_arrays_as_whole(model: str, nest: Any, is_named: bool) -> None:
    check(model, json.dumps({"inputs": {"x": nest}} if is_named else {"input_data": nest}).encode())


@given(models, requests.flatmap(mutated))
@settings(max_examples=200)
def test_cut_damaged_requests_as_whole(model: str, body: bytes) -> None:
    check(model, body)


BODIES = [
    '{"input_data": [[1, 2], [3, 4]]}',
    '{"input_data": [[1, 2], [3, 4]], "batch_size": 2}',
    '{"input_data": [[1, 2], [3, 4]], "batch_size": 3}',
    '{"batch_size": 1, "input_data": [1.5, 2.5, 3.5]}',
    '{"input_data": [[1, 2], [3, 4]], "input_data": [[1]]}',
    '{"input_data": [[1, 2], [3, 4]], "unknown": 1}',
    '{"unknown": [[1, 2], [3, 4]]}',
    '{"unknown": [[1, 2], [3, 4 4]]}',
    '{"input_data": [[1, 2], [3, 4]], "text": "\\u001anumbers"}',
    '{"inputs": {"x": [[1, 2]], "\\u001anumbers": 1}}',
    '{"inputs": {"x": {"data": [1, 2, 3, 4], "shape": [2, 2]}}}',
    '{"inputs": {"x": {"shape": [2, 2], "data": [1, 2, 3, 4]}}}',
    '{"inputs": {"x": {"shape": [2, 2, 7], "data": [[1, 2], [3, 4]]}}}',
    '{"inputs": {"x": [[1, 2]]}, "outputs": ["y"]}',
    '{"inputs": {"x": [[1, 2]]}, "outputs": ["z", "q"]}',
    '{"inputs": {"x": [[1, 2]]}, "parameters": {"x": [[1, 2]]}}',
    '{"parameters": {"x": [[1, 2]]}}',
    '{"text": [1, 2, 3]}',
    '{[1, 2]: 3}',
    '{"input_data": "[1, 2]"}',
    '{"input_data": "1"[1, 2]"3"}',
    '{"input_data": [1, 2]]}',
    '{"input_data": [[1, 2]}',
    '{"input_data": [1, 2], 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}',
    '{"input_data": [1, 2]} 5',
    '{"input_data": [1, 2]',
    '[1, 2, 3]',
    '[[1, 2], [3]]',
    '{"input_data": [true, [1, 2]]}',
    '{"input_data": [[1, 2], null]}',
    '{"version": "7", "input_data": [[1, 2]]}',
]  # fmt: skip


@pytest.mark.parametrize("model", ["float32", "matrix", "int64", "string", "sequence", "int-map", "mixed"])
def test_cut_bodies_give_equal_results(model: str) -> None:
    assert model in SPECS
    for body in BODIES:
        check(model, body.encode())
        check(model, body.replace("1", "1" + PADDING).encode())


def test_cut_tensors_of_open_inference_equal_whole() -> None:
    one = '{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1.5, 2, 3, 4]}'
    for body in (f'{{"inputs": [{one}]}}', f'{{"inputs": [{one}, {one}]}}', f'{{"inputs": [{one.replace("4", "x")}]}}'):
        whole = decoded(InferCodec(), "float32", body.encode())
        with cutting():
            made = decoded(InferCodec(), "float32", body.encode())
        assert type(made) is type(whole)
        if isinstance(made, tuple) and isinstance(made[0], type):
            assert made == whole
        else:
            assert made.request.inputs["x"].tobytes() == whole.request.inputs["x"].tobytes()


def test_cut_is_used_for_long_arrays() -> None:
    values = np.arange(10_000, dtype=np.float32).reshape(100, 100) / 7
    body = json.dumps({"input_data": values.tolist(), "timeout_ms": 500}).encode()
    with cutting():
        document = cut(body)
        assert document is not None
        members = document.members(document.root, {"input_data", "timeout_ms"})
        numbers, shape = document.numbers(members["input_data"], "float32")
        assert document.shapes_are_certain()
    assert members["timeout_ms"] == 500
    assert numbers.tobytes() == values.tobytes()
    assert shape == (100, 100)
    assert numbers.base is None  # no memory beside that of the numbers
