"""Encode /infer responses in the form of their requests."""

import json
from typing import Any

import numpy as np
import pytest

from app.protocols.native.codec import NativeRequest, encode
from app.protocols.native.fields import FIELDS, INPUT_FIELDS, OPTIONS, InferRequest
from app.protocols.shared.codec import AnswerContext, elements_of
from app.protocols.shared.json.output import to_json_value
from frameworks.generation.types import Choice, GenerateAnswer, TokenText, Usage
from frameworks.text.tokens import TokenizeAnswer
from frameworks.types import ClassifyAnswer, EmbedAnswer, ScoreAnswer, TensorBatch, TextRequest, Value
from tests.app.protocols.native.specs import SPECS

SPEC = SPECS["float32"]
CONTEXT = AnswerContext("m", "1", "id", 1.23456, 0)


def encoded(native: NativeRequest, answer: dict[str, Value] | EmbedAnswer | ClassifyAnswer) -> Any:
    body = json.loads(encode(native, answer, CONTEXT))
    assert (body.pop("model_name"), body.pop("version"), body.pop("latency_ms")) == ("m", "1", 1.235)
    return body


def test_encode_input_data_flat_or_nested() -> None:
    value = np.array([[1, 2], [3, np.nan]], np.float32)
    request = TensorBatch({}, ("y",))
    flat = encoded(NativeRequest("input_data", request, SPEC, flat=True), {"y": value})
    assert flat == {"output_data": [1, 2, 3, None], "output_shape": [2, 2]}
    nested = encoded(NativeRequest("input_data", request, SPEC), {"y": value})
    assert nested == {"output_data": [[1, 2], [3, None]], "output_shape": [2, 2]}
    scalar = encoded(NativeRequest("input_data", request, SPEC, flat=True), {"y": np.array(5, np.int64)})
    assert scalar == {"output_data": [5], "output_shape": []}
    sequence = encoded(NativeRequest("input_data", request, SPEC, flat=True), {"y": [{1: 0.5}, {2: np.float32(1)}]})
    assert sequence == {"output_data": [{"1": 0.5}, {"2": 1.0}], "output_shape": [2]}


def test_encode_named_outputs() -> None:
    native = NativeRequest("inputs", TensorBatch({}), SPEC)
    answer: dict[str, Value] = {"z": np.array([2**63 - 1]), "y": np.array(np.inf)}
    assert encoded(native, answer) == {
        "outputs": {
            "z": {"dtype": "int64", "shape": [1], "data": [2**63 - 1]},
            "y": {"dtype": "float32", "shape": [], "data": None},
        }
    }


def test_encode_text_answers() -> None:
    native = NativeRequest("text", TextRequest(["a"]), SPEC)
    rows = np.array([[0.25, 1]], np.float32)
    assert encoded(native, EmbedAnswer(rows, tokens=3)) == {"embeddings": [[0.25, 1]], "tokens": 3}
    assert encoded(native, EmbedAnswer(np.empty((0, 0), np.float32), tokens=0)) == {"embeddings": [], "tokens": 0}
    predictions = encoded(native, ClassifyAnswer([[("b", 0.75), ("a", 0.25)], []]))
    assert predictions == {"predictions": [[{"label": "b", "score": 0.75}, {"label": "a", "score": 0.25}], []]}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, None),
        ([], []),
        ({}, {}),
        ([np.array([1.5]), None, {"a": [np.array([[True]])]}], [[1.5], None, {"a": [[[True]]]}]),
        ({3: np.int64(2**62), -1: "x"}, {"3": 2**62, "-1": "x"}),
        (np.array(["a", ""], dtype=object), ["a", ""]),
        (np.array("a", dtype=object), "a"),
        (np.array([["ä", "🚂"]]), [["ä", "🚂"]]),
        (np.array([np.nan, np.inf, -np.inf, 0]), [None, None, None, 0]),
        (np.array([65504, np.nan], np.float16), [65504, None]),
        (np.array(np.nan, np.float16), None),
        (np.array(2**64 - 1, np.uint64), 2**64 - 1),
        (np.array(False), False),
        (np.empty((2, 0, 3), np.int8), [[], []]),
        (np.arange(6).reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
        (np.arange(8)[::2], [0, 2, 4, 6]),
    ],
)
def test_to_json_value_converts_every_type(value: Value, wanted: Any) -> None:
    import orjson

    assert json.loads(orjson.dumps(to_json_value(value), option=orjson.OPT_SERIALIZE_NUMPY)) == wanted


def test_to_json_value_is_exact_for_every_dtype() -> None:
    import orjson

    random = np.random.default_rng(5)
    for dtype in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"):
        array = np.frombuffer(random.bytes(8 * 512), dtype="u1" if dtype == "?" else dtype)
        array = array % 2 == 1 if dtype == "?" else array[np.isfinite(array)]
        decoded = json.loads(orjson.dumps(to_json_value(array), option=orjson.OPT_SERIALIZE_NUMPY))
        assert np.array(decoded, dtype=dtype).tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "shape",
    [
        (16 * 1024,), (16 * 1024 + 1,), (100_000,), (40_000, 1), (1, 40_000), (2, 40_000), (3, 16 * 1024), (300, 384),
        (40_000, 2, 2), (7, 1, 50_000), (2, 3, 4, 5000), (50_000, 0), (0, 50_000),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i8", "?"])
def test_to_json_value_of_long_arrays_is_equal(shape: tuple[int, ...], dtype: str) -> None:
    import orjson

    random = np.random.default_rng(1)
    array = (random.standard_normal(shape) * 3).astype(dtype)
    if array.dtype.kind == "f" and array.size:
        array.reshape(-1)[[0, array.size // 2, -1]] = np.nan, np.inf, -np.inf
    whole = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    for same in (array, np.asfortranarray(array)):
        assert orjson.dumps(to_json_value(same), option=orjson.OPT_SERIALIZE_NUMPY) == whole


def test_encode_long_embeddings_is_equal() -> None:
    import orjson

    rows = np.random.default_rng(1).standard_normal((300, 384)).astype(np.float32)
    body = encode(NativeRequest("text", TextRequest(["a"]), SPEC), EmbedAnswer(rows, tokens=3), CONTEXT)
    assert b'"embeddings":' + orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY) + b',"tokens":3' in body


LOGPROBS = TokenText(1, "a", -0.5, ((1, "a", -0.5), (2, "b", -1.5)))


@pytest.mark.parametrize(
    ("answer", "elements"),
    [
        ({}, 0),
        ({"y": np.zeros((3, 4)), "z": [np.zeros(5)] * 2, "w": 1.5}, 15),
        (EmbedAnswer(np.zeros((3, 4)), 1), 12),
        (ClassifyAnswer([[("a", 0.5)] * 3] * 4), 24),
        (ScoreAnswer([0.5] * 3, 1), 12),
        (TokenizeAnswer([1, 2, 3], None, 9), 3),
        (GenerateAnswer([Choice("a", "stop")] * 9, Usage(1, 9)), 0),
        (GenerateAnswer([Choice("aa", "stop", [LOGPROBS] * 2)] * 5, Usage(1, 10)), 32 * 5 * 2 * 3),
    ],
)
def test_elements_of_counts_values(answer: Any, elements: int) -> None:
    assert elements_of(answer) == elements


def test_field_tables_agree() -> None:
    assert InferRequest.model_fields.keys() == FIELDS.keys()
    assert OPTIONS.keys() == set(INPUT_FIELDS)
    assert OPTIONS["prompt"] == OPTIONS["messages"]
