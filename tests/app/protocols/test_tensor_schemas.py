"""Hold the OpenAPI schemas of tensor bodies to their hand-written decoders."""

import copy
import json
from math import prod
from typing import Any, get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from app.protocols.native.codec import NativeCodec
from app.protocols.native.fields import InferRequest
from app.protocols.open_inference.datatypes import DATATYPES, DTYPES
from app.protocols.open_inference.infer_codec import Datatype, InferCodec, OpenInferenceRequest
from app.protocols.shared.codec import Target
from frameworks.core.errors import FieldError, InvalidInput, UnknownField
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import SPECS, find_spec
from tests.app.protocols.strategies import json_values

CODEC = InferCodec()
ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "float32": st.integers(-9, 9) | st.floats(-9, 9),
    "int64": st.integers(-9, 9),
    "uint8": st.integers(0, 9),
    "bool": st.booleans(),
    "string": st.text(max_size=3),
}
"""Model → elements of its input `x`, which accepts every shape."""


def nested(flat: list[Any], shape: list[int]) -> Any:
    """Nest a flat list in a shape; the empty shape gives the element."""
    if not shape:
        return flat[0]
    step = prod(shape[1:])
    return [nested(flat[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


@st.composite
def open_inference_requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw a model and a valid body of /v2 infer."""
    model = draw(st.sampled_from(sorted(ELEMENTS)))
    is_nested = draw(st.booleans())
    # Nested lists have no form for a size of 0 before another dimension.
    shape = draw(st.lists(st.integers(1 if is_nested else 0, 3), min_size=1, max_size=3))
    flat = draw(st.lists(ELEMENTS[model], min_size=prod(shape), max_size=prod(shape)))
    data = nested(flat, shape) if is_nested else flat
    tensor: dict[str, Any] = {"name": "x", "shape": shape, "datatype": DATATYPES[model], "data": data}
    tensor |= draw(st.fixed_dictionaries({}, optional={"parameters": st.just({}) | st.none()}))
    output: st.SearchStrategy[Any] = st.fixed_dictionaries({"name": st.just("y")}, optional={"parameters": st.just({})})
    outputs = st.lists(output, max_size=1)
    options: dict[str, st.SearchStrategy[Any]] = {
        "id": st.text(max_size=3) | st.none(),
        "outputs": outputs | st.none(),
        "parameters": st.fixed_dictionaries({}, optional={"priority": st.integers(0, 9)}) | st.none(),
        "model_name": json_values,
    }
    return model, {"inputs": [tensor], **draw(st.fixed_dictionaries({}, optional=options))}


@st.composite
def native_requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw a model and a valid body of /infer with tensors or texts."""
    common: dict[str, st.SearchStrategy[Any]] = {
        "priority": st.integers(1, 9),
        "timeout_ms": st.integers(1, 2**31 - 1),
        "version": st.just("1"),
    }
    if draw(st.booleans()):
        options = {"normalize": st.booleans(), "truncate": st.booleans()}
        text = draw(st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=3))
        return "embed", {"text": text, **draw(st.fixed_dictionaries({}, optional=common | options))}
    model = draw(st.sampled_from(sorted(ELEMENTS)))
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    data = nested(draw(st.lists(ELEMENTS[model], min_size=prod(shape), max_size=prod(shape))), shape)
    outputs = {"outputs": st.just(["y"])}
    fields = draw(st.fixed_dictionaries({}, optional=common | outputs))
    return model, draw(st.sampled_from([{"input_data": data}, {"inputs": {"x": data}}])) | fields


def meets(schema: type[BaseModel], body: Any) -> bool:
    """Whether the body meets the schema that OpenAPI shows."""
    try:
        schema.model_validate(body)
    except ValidationError:
        return False
    return True


def error_of(schema: type[BaseModel], model: str, body: Any) -> FieldError | None:
    """Decode a body of the schema's protocol; return the error of a refused one."""
    content = json.dumps(body).encode()
    try:
        if schema is InferRequest:
            decode_body(NativeCodec(), content, Target(model), find_spec)
        else:
            decode_body(CODEC, content, Target(model), find_spec)
    except (InvalidInput, UnknownField) as error:
        return error
    return None


def objects_of(schema: type[BaseModel], body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of a body whose members the schema lists."""
    if schema is InferRequest:
        return [body]
    return [body, *body["inputs"], *(body.get("outputs") or [])]


CASES = pytest.mark.parametrize(
    ("schema", "requests"),
    [(OpenInferenceRequest, open_inference_requests()), (InferRequest, native_requests())],
    ids=["open_inference", "native"],
)


@CASES
@given(data=st.data())
@settings(max_examples=37)
def test_valid_body_is_accepted_by_both(schema: type[BaseModel], requests: Any, data: st.DataObject) -> None:
    model, body = data.draw(requests)
    assert meets(schema, body)
    assert error_of(schema, model, body) is None


@CASES
@given(data=st.data())
@settings(max_examples=37)
def test_unknown_field_is_refused_by_both(schema: type[BaseModel], requests: Any, data: st.DataObject) -> None:
    model, body = data.draw(requests)
    changed = data.draw(st.sampled_from(objects_of(schema, body)))
    changed["shapes"] = data.draw(json_values)
    assert not meets(schema, body)
    assert isinstance(error_of(schema, model, body), UnknownField)


@CASES
@given(data=st.data())
@settings(max_examples=75)
def test_body_that_schema_refuses_is_refused(schema: type[BaseModel], requests: Any, data: st.DataObject) -> None:
    model, body = data.draw(requests)
    changed = data.draw(st.sampled_from(objects_of(schema, body)))
    name = data.draw(st.sampled_from(sorted(changed)))
    if data.draw(st.booleans()):
        changed[name] = data.draw(json_values)
    else:
        del changed[name]
    assume(_fits_64_bits(body))
    # Exactly one input is a rule between fields, which a schema does not express.
    assert error_of(schema, model, copy.deepcopy(body)) is not None or meets(schema, body)


def test_schema_lists_every_datatype() -> None:
    assert get_args(Datatype) == tuple(DTYPES)
    assert ELEMENTS.keys() <= SPECS.keys()


@pytest.mark.parametrize("schema", [InferRequest, OpenInferenceRequest])
def test_schema_has_no_null_where_null_is_refused(schema: type[BaseModel]) -> None:
    for name, described in schema.model_json_schema()["properties"].items():
        if "type" in described:
            assert described.get("default", "absent") is not None, name


def _fits_64_bits(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_fits_64_bits, value.values()))
    if isinstance(value, list):
        return all(map(_fits_64_bits, value))
    return not isinstance(value, int) or -(2**63) <= value < 2**64
