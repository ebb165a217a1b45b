"""Decode any body to a request or a RoundhouseError, equally with and without simdjson."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.protocols.native.codec import NativeCodec, NativeRequest
from app.protocols.native.fields import INPUT_FIELDS
from app.protocols.shared.codec import Target
from app.protocols.shared.json import body as json_body
from frameworks.core.errors import RoundhouseError
from frameworks.generation.types import GenerateRequest
from frameworks.images.spec import ImageRequest
from frameworks.types import NUMPY_DTYPES, TensorBatch, TensorType, TextRequest
from tests.app.protocols.decoding import decode_body, same
from tests.app.protocols.native.specs import SPECS, find_spec
from tests.app.protocols.strategies import json_values, mutated, nests, numbers, requests, scalars, strings

models = st.sampled_from(sorted(SPECS))


@contextmanager
def without_simdjson() -> Iterator[None]:
    """Run as on a Python version without a wheel of pysimdjson."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_body, "simdjson", None)
        yield


def read(model: str, body: bytes) -> NativeRequest | RoundhouseError:
    """Return the request or the RoundhouseError; every other exception fails the test."""
    try:
        native: NativeRequest = decode_body(NativeCodec(), body, Target(model), find_spec)
    except RoundhouseError as refusal:
        error = refusal
    else:
        check_whole(model, native)
        return native
    assert len(error.message.encode()) < 2000
    return error


def check_whole(model: str, native: NativeRequest) -> None:
    """Check the invariants that frameworks rely on."""
    spec = SPECS[model]
    if isinstance(native.request, TextRequest):
        assert spec.text is not None
        assert all(type(text) is str for text in native.request.texts)
        return
    if isinstance(native.request, ImageRequest):
        assert spec.image is not None
        assert native.request.images
        assert all(type(file) is bytes and file for file in native.request.images)
        return
    if isinstance(native.request, GenerateRequest):
        assert spec.generation is not None
        assert len(native.request.prompts) == 1
        assert 1 <= native.request.num_choices <= 128
        assert native.request.stopping.max_tokens is not None
        return
    assert isinstance(native.request, TensorBatch)
    assert native.request.inputs.keys() <= spec.inputs_by_name.keys()
    assert {s.name for s in spec.inputs if s.required} <= native.request.inputs.keys()
    for name, value in native.request.inputs.items():
        declared = spec.inputs_by_name[name]
        if isinstance(declared.type, TensorType):
            assert isinstance(value, np.ndarray)
            assert value.dtype == NUMPY_DTYPES[declared.type.dtype]
            assert value.flags.c_contiguous
            assert value.dtype.kind != "f" or np.isfinite(value).all()
            assert declared.shape is None or len(declared.shape) == value.ndim


def check_parsers_agree(model: str, body: bytes) -> None:
    quick = read(model, body)
    with without_simdjson():
        exact = read(model, body)
    if isinstance(quick, NativeRequest) and isinstance(exact, NativeRequest):
        assert (quick.field, quick.flat, quick.stream) == (exact.field, exact.flat, exact.stream)
        if isinstance(quick.request, TensorBatch) and isinstance(exact.request, TensorBatch):
            assert quick.request.output_names == exact.request.output_names
            assert quick.request.inputs.keys() == exact.request.inputs.keys()
            assert all(same(value, exact.request.inputs[name]) for name, value in quick.request.inputs.items())
        else:
            assert quick.request == exact.request
    else:
        assert type(quick) is type(exact), (quick, exact)


@given(models, st.binary(max_size=100))
def test_decode_any_bytes(model: str, body: bytes) -> None:
    read(model, body)


@given(models, json_values)
@settings(max_examples=50)
def test_decode_any_json(model: str, value: Any) -> None:
    read(model, json.dumps(value).encode())


@given(models, st.sampled_from(INPUT_FIELDS), json_values)
@settings(max_examples=75)
def test_decode_any_value_of_each_input(model: str, input_field: str, value: Any) -> None:
    read(model, json.dumps({input_field: value}).encode())


@given(models, requests.flatmap(mutated))
@settings(max_examples=75)
def test_decode_damaged_requests(model: str, body: bytes) -> None:
    read(model, body)


DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "uint64", "int8", "bool", "string")


@given(
    st.sampled_from([*DTYPES, "matrix", "fixed", "free", "zero"]),
    st.one_of(nests(numbers), nests(st.integers(-2, 2)), nests(scalars), nests(strings)),
)
@settings(max_examples=100)
@example("float32", [[1], [[2]]])
@example("float32", [[], [1]])
@example("float32", [1, [2], 3])
@example("int64", [2**63])
@example("uint64", [2**64])
@example("float64", [10**30])
@example("string", ["[", ["]"]])
def test_both_parsers_read_nested_arrays_alike(model: str, nest: Any) -> None:
    check_parsers_agree(model, json.dumps({"input_data": nest}).encode())


@given(nests(st.integers(-2, 2)), nests(strings), nests(st.booleans()))
@settings(max_examples=50)
@example([[1, 2], [3, [4]]], ["["], [])
@example([1, [2]], [], [True])
def test_both_parsers_read_several_tensors_alike(x: Any, s: Any, b: Any) -> None:
    check_parsers_agree("mixed", json.dumps({"inputs": {"x": x, "s": s, "b": b}}).encode())


@given(models, requests)
@settings(max_examples=75)
def test_both_parsers_read_requests_alike(model: str, request: dict[str, Any]) -> None:
    check_parsers_agree(model, json.dumps(request).encode())


@given(
    st.sampled_from(["sequence", "sequences", "maps", "int-map", "string-map", "optional"]),
    st.one_of(json_values, nests(st.integers(0, 3)), st.dictionaries(strings | st.just("1"), scalars, max_size=3)),
)
@settings(max_examples=75)
def test_both_parsers_read_sequences_and_maps_alike(model: str, value: Any) -> None:
    check_parsers_agree(model, json.dumps({"inputs": {"x": value}}).encode())


@given(st.sampled_from(DTYPES[:4]), nests(st.floats(-60000, 60000, width=16)))
@settings(max_examples=50)
def test_decode_nested_array_equals_numpy(dtype: str, nest: Any) -> None:
    try:
        wanted = np.array(nest, dtype=np.float64)
    except ValueError:
        wanted = None  # ragged
    decoded = read(dtype, json.dumps({"inputs": {"x": nest}}).encode())
    if wanted is None or wanted.ndim > 32:
        assert isinstance(decoded, RoundhouseError)
    else:
        assert isinstance(decoded, NativeRequest)
        assert isinstance(decoded.request, TensorBatch)
        value = decoded.request.inputs["x"]
        assert isinstance(value, np.ndarray)
        assert value.shape == wanted.shape
        assert (value == wanted.astype(NUMPY_DTYPES[dtype])).all()
