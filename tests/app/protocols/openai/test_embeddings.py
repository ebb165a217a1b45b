"""/v1/embeddings: bodies decoded, and responses parsed by OpenAI's own client."""

import base64

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CreateEmbeddingResponse

from app.protocols.openai.codec import OpenAiRequest
from app.protocols.openai.embeddings import EMBEDDINGS_CODEC
from app.protocols.shared.errors import to_http
from frameworks.core.errors import InvalidInput
from frameworks.types import EmbedAnswer, TextRequest
from tests.app.protocols.openai.decoding import assert_refused, check_is, decode, encode

ROWS = np.array([[0.5, -1.25, 3.0], [1e-9, 0.1, 1e9]], dtype=np.float32)


def embedding(**fields: object) -> OpenAiRequest:
    return decode(EMBEDDINGS_CODEC, **{"model": "embed", "input": "a", **fields})


def refused(field: str, *words: str, **fields: object) -> None:
    assert_refused(EMBEDDINGS_CODEC, field, *words, **{"model": "embed", "input": "a", **fields})


@given(st.text(max_size=20) | st.lists(st.text(max_size=20), min_size=1, max_size=5))
def test_input_of_texts_is_read(texts: str | list[str]) -> None:
    assert embedding(input=texts).request == TextRequest([texts] if isinstance(texts, str) else texts)


@pytest.mark.parametrize(("given", "wanted"), [([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])])
def test_input_of_token_ids_is_read(given: list[object], wanted: list[list[int]]) -> None:
    assert embedding(input=given).request == TextRequest([], token_ids=wanted)


def test_options_reach_request() -> None:
    decoded = embedding(truncate=False, encoding_format="base64", user="me", priority=2, timeout_ms=7)
    assert decoded.request == TextRequest(["a"], truncate=False)
    assert (decoded.body.encoding_format, decoded.priority, decoded.timeout_ms, decoded.stream) == (
        "base64",
        2,
        7,
        False,
    )


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("input", None, "got nothing"),
        ("input", 1, "expected a string, a list of 1 to 100000 strings, a non-empty list of integers "),
        ("input[1]", ["a", None], "expected a string, got null"),
        ("input", [], "expected a list of 1 to 100000 strings, "),
        ("input[0]", [[]], "expected a non-empty list of integers from 0 to"),
        ("input[1]", [1, "a"], "expected an integer from 0 to"),
        ("input[0][1]", [[1, -1]], "expected an integer from 0 to"),
        ("input", ["a"] * 100_001, "expected a list of 1 to 100000 strings, "),
        ("input", [[1]] * 100_001, "got 100001 items"),
        ("encoding_format", "hex", "base64"),
        ("truncate", 1, "expected a boolean, got 1"),
        ("dimensions", -1, "expected an integer from 0 to"),
    ],
)
def test_invalid_value_is_refused(field: str, value: object, word: str) -> None:
    refused(field, word, **{field.partition("[")[0]: value})


def test_error_field_is_named_as_in_body() -> None:
    for field, param in (("text", "input"), ("text[3]", "input[3]"), ("dimensions", "dimensions")):
        error = orjson.loads(EMBEDDINGS_CODEC.error_body(to_http(InvalidInput(field, "wrong")), "abc-1"))["error"]
        assert (error["param"], error["message"]) == (param, f"{param}: wrong")


class TestDimensions:
    def test_model_without_shorter_sizes(self) -> None:
        assert embedding(dimensions=8).request.dimensions is None
        refused("dimensions", "expected 8, the size of this model's vectors, got 4; omit the field", dimensions=4)

    def test_model_of_unknown_size(self) -> None:
        refused("dimensions", "expected nothing, got 4; omit the field", dimensions=4, model="embed-unknown-size")

    def test_model_with_listed_shorter_sizes(self) -> None:
        for dimensions, wanted in ((2, 2), (4, 4), (8, None)):
            assert embedding(dimensions=dimensions, model="embed-two-shorter-sizes").request.dimensions == wanted
        refused("dimensions", "expected one of 2, 4, 8, got 3", dimensions=3, model="embed-two-shorter-sizes")

    def test_model_with_range_of_shorter_sizes(self) -> None:
        assert embedding(dimensions=17, model="embed-any-shorter-size").request.dimensions == 17
        refused("dimensions", "from 1 to 63", dimensions=65, model="embed-any-shorter-size")


class TestResponse:
    def test_vectors_as_numbers(self) -> None:
        body = encode(EMBEDDINGS_CODEC, embedding(), EmbedAnswer(ROWS, tokens=7))
        response = check_is(CreateEmbeddingResponse, body)
        assert (response.model, response.usage.prompt_tokens, response.usage.total_tokens) == ("llama", 7, 7)
        assert [each.index for each in response.data] == [0, 1]
        assert np.array_equal(np.array([each.embedding for each in response.data], dtype=np.float32), ROWS)

    def test_vectors_as_base64(self) -> None:
        body = encode(EMBEDDINGS_CODEC, embedding(encoding_format="base64"), EmbedAnswer(ROWS, tokens=7))
        for each, row in zip(body["data"], ROWS, strict=True):
            assert np.array_equal(np.frombuffer(base64.b64decode(each["embedding"]), "<f4"), row)

    def test_vectors_of_strided_array(self) -> None:
        wide = np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2]
        body = encode(EMBEDDINGS_CODEC, embedding(), EmbedAnswer(wide, tokens=7))
        assert [each["embedding"] for each in body["data"]] == wide.tolist()
