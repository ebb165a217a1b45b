"""/v1/embeddings: what is asked, and what OpenAI's own client would read."""

import base64

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CreateEmbeddingResponse

from app.protocols.openai.codec import Question
from app.protocols.openai.embeddings import EMBEDDINGS_FORMAT
from frameworks.types import EmbedAnswer, TextRequest
from tests.app.protocols.openai.requests import answer, ask, assert_refused, check_is

ROWS = np.array([[0.5, -1.25, 3.0], [1e-9, 0.1, 1e9]], dtype=np.float32)


def embedding(**fields: object) -> Question:
    return ask(EMBEDDINGS_FORMAT, **{"model": "embed", "input": "a", **fields})


def refused(field: str, *words: str, **fields: object) -> None:
    assert_refused(EMBEDDINGS_FORMAT, field, *words, **{"model": "embed", "input": "a", **fields})


@given(st.text(max_size=20) | st.lists(st.text(max_size=20), max_size=5))
def test_texts(texts: str | list[str]) -> None:
    assert embedding(input=texts).request == TextRequest([texts] if isinstance(texts, str) else texts)


def test_options() -> None:
    question = embedding(truncate=False, encoding_format="base64", user="me", priority=2, timeout_ms=7)
    assert question.request == TextRequest(["a"], truncate=False)
    assert (question.form, question.priority, question.timeout_ms, question.stream) == ("base64", 2, 7, False)


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("input", None, "missing"),
        ("input", 1, "wants a string"),
        ("input", ["a", None], "input[1]"),
        ("input", [1, 2], "token ids"),
        ("input", [[1, 2]], "check_embedding_ctx_length=False"),
        ("input", ["a"] * 100_001, "100000"),
        ("encoding_format", "hex", "base64"),
        ("truncate", 1, "true or false"),
        ("dimensions", 0, "whole number"),
    ],
)
def test_what_cannot_be_read(field: str, value: object, word: str) -> None:
    where = "input[1]" if value == ["a", None] else field
    refused(where, word, **{field: value})


def test_what_is_wrong_with_a_text_is_told_in_the_caller_s_words() -> None:
    for field, param in (("text[3]", "input[3]"), ("dimensions", "dimensions")):
        error = orjson.loads(EMBEDDINGS_FORMAT.error_body(400, "invalid_input", f"{field}: wrong", "abc-1"))["error"]
        assert (error["param"], error["message"]) == (param, f"{param}: wrong")


class TestDimensions:
    def test_a_model_of_one_size(self) -> None:
        assert embedding(dimensions=8).request.dimensions is None
        refused("dimensions", "send 8 or leave it out", dimensions=4)

    def test_a_model_whose_size_nobody_knows(self) -> None:
        refused("dimensions", "leave it out", dimensions=4, model="embed-of-any-size")

    def test_a_model_that_can_be_cut(self) -> None:
        for dimensions, wanted in ((2, 2), (4, 4), (8, None)):
            assert embedding(dimensions=dimensions, model="embed-cuts").request.dimensions == wanted
        refused("dimensions", "2, 4", dimensions=3, model="embed-cuts")

    def test_a_model_that_can_be_cut_anywhere(self) -> None:
        assert embedding(dimensions=17, model="embed-cuts-anywhere").request.dimensions == 17
        refused("dimensions", "from 1 to 63", dimensions=65, model="embed-cuts-anywhere")


class TestAnswer:
    def test_numbers(self) -> None:
        body = answer(EMBEDDINGS_FORMAT, embedding(), EmbedAnswer(ROWS, tokens=7))
        response = check_is(CreateEmbeddingResponse, body)
        assert (response.model, response.usage.prompt_tokens, response.usage.total_tokens) == ("llama", 7, 7)
        assert [each.index for each in response.data] == [0, 1]
        assert np.array_equal(np.array([each.embedding for each in response.data], dtype=np.float32), ROWS)

    def test_base64(self) -> None:
        body = answer(EMBEDDINGS_FORMAT, embedding(encoding_format="base64"), EmbedAnswer(ROWS, tokens=7))
        for each, row in zip(body["data"], ROWS, strict=True):
            assert np.array_equal(np.frombuffer(base64.b64decode(each["embedding"]), "<f4"), row)

    def test_rows_that_lie_in_a_larger_array(self) -> None:
        wide = np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2]
        body = answer(EMBEDDINGS_FORMAT, embedding(), EmbedAnswer(wide, tokens=7))
        assert [each["embedding"] for each in body["data"]] == wide.tolist()

    def test_no_texts(self) -> None:
        body = answer(EMBEDDINGS_FORMAT, embedding(input=[]), EmbedAnswer(np.empty((0, 0), np.float32), tokens=0))
        assert check_is(CreateEmbeddingResponse, body).data == []
