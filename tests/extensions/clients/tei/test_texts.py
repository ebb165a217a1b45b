"""The routes of Text Embeddings Inference: texts of a body, and vectors, labels and scores in a response."""

from typing import Any

import numpy as np
import orjson
import pytest
from pydantic import BaseModel

from app.protocols.shared.errors import ErrorReply, to_http
from extensions.clients.tei.routes import (
    TeiErrorResponse,
    TeiPredictions,
    TeiRanks,
    TeiRootResponse,
    TeiSimilarities,
    TeiSparseVectors,
    TeiTokens,
    TeiVectors,
)
from extensions.clients.tei.texts import (
    EMBED_CODEC,
    EMBED_SPARSE_CODEC,
    PREDICT_CODEC,
    RERANK_CODEC,
    ROOT_CODEC,
    SIMILARITY_CODEC,
    TOKENIZE_CODEC,
    TeiCodec,
)
from frameworks.core.errors import InvalidInput, UnknownField
from frameworks.text.tokens import SpansAnswer, SpansRequest
from frameworks.types import ClassifyAnswer, EmbedAnswer, PairRequest, ScoreAnswer, SparseAnswer, TextRequest
from tests.app.protocols.openai.decoding import assert_refused, decode, decode_error, encode

VECTORS = EmbedAnswer(np.array([[0.5, -1], [2, 3]], np.float32), 9)
ONE = ClassifyAnswer([[("b", 0.75), ("a", 0.25)]], 4)
TWO = ClassifyAnswer([[("b", 0.75), ("a", 0.25)], [("a", 1.0), ("b", 0.0)]], 9)
ROW = [{"score": 0.75, "label": "b"}, {"score": 0.25, "label": "a"}]
SPARSE: dict[str, Any] = {"vectors": ("sparse",), "kinds": ("sparse",)}
RANKED = {"query": "q", "texts": ["a", "b", "c"]}
SIMILAR: dict[str, Any] = {"source_sentence": "s", "sentences": ["a", "b"]}


def check(kind: type[BaseModel], body: object) -> None:
    kind.model_validate(body, strict=True)


@pytest.mark.parametrize("codec", [EMBED_CODEC, ROOT_CODEC])
class TestEmbed:
    @pytest.mark.parametrize(
        ("fields", "request_"),
        [
            ({"inputs": "a"}, TextRequest(["a"], normalize=True)),
            ({"inputs": ["a", "b"], "truncate": None}, TextRequest(["a", "b"], normalize=True)),
            ({"inputs": "a", "truncate": False, "normalize": False}, TextRequest(["a"], False, False)),
            ({"inputs": [1, 2]}, TextRequest([], True, token_ids=[[1, 2]])),
            ({"inputs": [[1], [2]]}, TextRequest([], True, token_ids=[[1], [2]])),
            ({"inputs": "a", "prompt_name": None, "truncation_direction": "Right"}, TextRequest(["a"], True, "right")),
            ({"inputs": "a", "truncation_direction": "Left", "truncate": None}, TextRequest(["a"], True, "left")),
            ({"inputs": "a", "truncation_direction": "left", "truncate": False}, TextRequest(["a"], True, False)),
            ({"inputs": "a", "truncation_direction": None, "encoding_format": "float"}, TextRequest(["a"], True)),
            ({"inputs": "a", "dimensions": 8, "priority": 2}, TextRequest(["a"], True)),
        ],
    )
    def test_body_becomes_text_request(self, codec: TeiCodec, fields: dict[str, object], request_: TextRequest) -> None:
        assert decode(codec, **fields).request == request_

    def test_response_is_list_of_vectors(self, codec: TeiCodec) -> None:
        body = encode(codec, decode(codec, inputs="a"), VECTORS)
        assert body == [[0.5, -1], [2, 3]]
        check(TeiVectors, body)
        check(TeiRootResponse, body)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("inputs", None),
            ("inputs", []),
            ("truncation_direction", "Middle"),
            ("prompt_name", "query"),
            ("encoding_format", "base64"),
            ("dimensions", 4),
        ],
    )
    def test_other_answers_are_refused(self, codec: TeiCodec, field: str, value: object) -> None:
        assert_refused(codec, field, **{"inputs": "a", field: value})

    def test_prompt_of_name_is_used(self, codec: TeiCodec) -> None:
        fields: dict[str, Any] = {"model": "embed-prompts", "inputs": "a"}
        assert decode(codec, **fields, prompt_name="query").request == TextRequest(["a"], True, prompt="q: ")
        assert_refused(codec, "prompt_name", "one of clustering, passage, query", **fields, prompt_name="document")
        assert_refused(codec, "prompt_name", "expected null", **fields | {"inputs": [1]}, prompt_name="query")

    def test_unknown_field_is_refused(self, codec: TeiCodec) -> None:
        assert isinstance(decode_error(codec, input="a"), UnknownField)

    def test_lists_of_texts_are_refused(self, codec: TeiCodec) -> None:
        error = decode_error(codec, inputs=[["a"]])
        assert isinstance(error, InvalidInput)
        assert error.field.startswith("inputs")


class TestEmbedSparse:
    @pytest.mark.parametrize(
        ("fields", "request_"),
        [
            ({"inputs": ["a", "b"]}, TextRequest(["a", "b"], **SPARSE)),
            ({"inputs": [[1], [2]]}, TextRequest([], token_ids=[[1], [2]], **SPARSE)),
            (
                {"inputs": "a", "truncate": False},
                TextRequest(["a"], truncate=False, **SPARSE),
            ),
            (
                {"inputs": "a", "prompt_name": "query"},
                TextRequest(["a"], prompt="q: ", **SPARSE),
            ),
        ],
    )
    def test_body_becomes_text_request(self, fields: dict[str, object], request_: TextRequest) -> None:
        assert decode(EMBED_SPARSE_CODEC, model="embed-sparse", **fields).request == request_

    def test_response_has_elements_of_texts(self) -> None:
        indices = [np.array([3, 70], np.int32), np.array([], np.int32)]
        answer = SparseAnswer(indices, [np.array([0.1, 2], np.float32), np.array([], np.float32)], 4)
        body = encode(EMBED_SPARSE_CODEC, decode(EMBED_SPARSE_CODEC, model="embed-sparse", inputs=["a", ""]), answer)
        assert body == [[{"index": 3, "value": 0.1}, {"index": 70, "value": 2.0}], []]
        check(TeiSparseVectors, body)

    def test_dense_model_is_refused(self) -> None:
        assert_refused(EMBED_SPARSE_CODEC, "model", "post the texts to /embed", model="embed", inputs="a")

    @pytest.mark.parametrize(("field", "value"), [("inputs", []), ("inputs", [["a"]]), ("prompt_name", "passage")])
    def test_wrong_fields_are_refused(self, field: str, value: object) -> None:
        body = {"model": "embed-sparse", "inputs": "a", field: value}
        assert isinstance(decode_error(EMBED_SPARSE_CODEC, **body), InvalidInput)


@pytest.mark.parametrize("codec", [PREDICT_CODEC, ROOT_CODEC])
class TestPredict:
    @pytest.mark.parametrize(
        ("inputs", "request_", "answer"),
        [
            ("a", TextRequest(["a"]), ROW),
            (["a"], TextRequest(["a"]), ROW),
            (["a", "b"], PairRequest([("a", "b")], with_labels=True), ROW),
            ([["a"]], TextRequest(["a"]), [ROW]),
            ([["a", "b"]], PairRequest([("a", "b")], with_labels=True), [ROW]),
        ],
    )
    def test_response_has_form_of_inputs(self, codec: TeiCodec, inputs: object, request_: Any, answer: object) -> None:
        decoded = decode(codec, model="classify", inputs=inputs)
        assert decoded.request == request_
        body = encode(codec, decoded, ONE)
        assert body == answer
        check(TeiPredictions, body)

    def test_side_of_cut_is_read(self, codec: TeiCodec) -> None:
        decoded = decode(codec, model="classify", inputs="a", truncation_direction="LEFT")
        assert decoded.request == TextRequest(["a"], truncate="left")

    def test_several_texts_are_classified(self, codec: TeiCodec) -> None:
        decoded = decode(codec, model="classify", inputs=[["a"], ["b"]], raw_scores=True, truncate=False)
        assert decoded.request == TextRequest(["a", "b"], truncate=False, raw_scores=True)
        assert encode(codec, decoded, TWO)[1] == [{"score": 1.0, "label": "a"}, {"score": 0.0, "label": "b"}]

    @pytest.mark.parametrize("inputs", [[["a"], ["a", "b"]], ["a", "b", "c"], [["a", "b", "c"]], [1], [[]], []])
    def test_other_inputs_are_refused(self, codec: TeiCodec, inputs: object) -> None:
        error = decode_error(codec, model="classify", inputs=inputs)
        assert isinstance(error, InvalidInput)
        assert error.field.startswith("inputs")


class TestHuggingFace:
    """Bodies of huggingface_hub's InferenceClient at the root."""

    def test_labels_are_nested(self) -> None:
        decoded = decode(ROOT_CODEC, model="classify", inputs="a", parameters={"top_k": 1, "function_to_apply": None})
        assert decoded.request == TextRequest(["a"], top_k=1)
        assert encode(ROOT_CODEC, decoded, ONE) == [ROW]

    def test_list_is_no_pair(self) -> None:
        decoded = decode(ROOT_CODEC, model="classify", inputs=["a", "b"], parameters={"function_to_apply": "none"})
        assert decoded.request == TextRequest(["a", "b"], raw_scores=True)

    def test_prompt_of_labels_is_refused(self) -> None:
        assert_refused(ROOT_CODEC, "prompt_name", model="classify", inputs="a", prompt_name="query")

    def test_parameters_hold_options_of_vectors(self) -> None:
        parameters = {"normalize": False, "prompt_name": "query", "dimensions": None, "truncate": False}
        decoded = decode(ROOT_CODEC, model="embed-prompts", inputs=["a"], parameters=parameters)
        assert decoded.request == decode(
            ROOT_CODEC, model="embed-prompts", inputs=["a"], normalize=False, prompt_name="query", truncate=False
        ).request  # fmt: skip
        assert decoded.request.normalize is False
        assert decoded.request.prompt

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"parameters": {"normalize": True}, "normalize": True}, "parameters.normalize"),
            ({"parameters": {"dimensions": 3}}, "parameters.dimensions"),
            ({"dimensions": 3, "parameters": {}}, "dimensions"),
            ({"parameters": {"prompt_name": "other"}}, "parameters.prompt_name"),
            ({"inputs": SIMILAR, "parameters": {"normalize": True}}, "parameters.normalize"),
            ({"model": "classify", "parameters": {"dimensions": 8}}, "parameters.dimensions"),
        ],
    )
    def test_wrong_options_of_vectors_are_refused(self, fields: dict[str, object], field: str) -> None:
        assert_refused(ROOT_CODEC, field, **({"inputs": "a"} | fields))

    def test_unknown_parameter_is_refused(self) -> None:
        error = decode_error(ROOT_CODEC, model="classify", inputs="a", parameters={"top": 1})
        assert error.message.startswith("parameters.top: unknown field")


@pytest.mark.parametrize("codec", [SIMILARITY_CODEC, ROOT_CODEC])
class TestSimilarity:
    @pytest.mark.parametrize(
        ("parameters", "truncate"),
        [(None, True), ({}, True), ({"truncate": False, "truncation_direction": "Right", "prompt_name": None}, False)],
    )
    def test_source_is_paired_with_each_sentence(self, codec: TeiCodec, parameters: object, truncate: bool) -> None:
        decoded = decode(codec, inputs=SIMILAR, parameters=parameters)
        assert decoded.request == PairRequest([("s", "a"), ("s", "b")], truncate)
        body = encode(codec, decoded, ScoreAnswer([0.5, -0.25], 9))
        assert body == [0.5, -0.25]
        check(TeiSimilarities, body)

    def test_classifier_is_refused(self, codec: TeiCodec) -> None:
        error = decode_error(codec, model="classify", inputs=SIMILAR)
        assert isinstance(error, InvalidInput)

    def test_side_of_cut_is_read(self, codec: TeiCodec) -> None:
        decoded = decode(codec, inputs=SIMILAR, parameters={"truncation_direction": "Left"})
        assert decoded.request.truncate == "left"
        assert_refused(codec, "parameters.truncation_direction", inputs=SIMILAR, parameters={"truncation_direction": 1})


class TestRerank:
    @pytest.mark.parametrize("model", [None, "embed"])
    def test_texts_are_ranked(self, model: str | None) -> None:
        decoded = decode(RERANK_CODEC, **RANKED, model=model, raw_scores=False)
        assert decoded.request == PairRequest([("q", "a"), ("q", "b"), ("q", "c")])
        body = encode(RERANK_CODEC, decoded, ScoreAnswer([0.25, 0.75, 0.25], 9))
        assert body == [{"index": 1, "score": 0.75}, {"index": 0, "score": 0.25}, {"index": 2, "score": 0.25}]
        check(TeiRanks, body)

    @pytest.mark.parametrize(("top_n", "indices"), [(2, [1, 0]), (0, [1, 0, 2]), (None, [1, 0, 2])])
    def test_best_texts_are_returned(self, top_n: int | None, indices: list[int]) -> None:
        decoded = decode(RERANK_CODEC, **RANKED, top_n=top_n)
        body = encode(RERANK_CODEC, decoded, ScoreAnswer([0.25, 0.75, 0.125], 9))
        assert [each["index"] for each in body] == indices

    def test_side_of_cut_is_read(self) -> None:
        assert decode(RERANK_CODEC, **RANKED, truncation_direction="Left").request.truncate == "left"

    def test_texts_are_returned_on_request(self) -> None:
        decoded = decode(RERANK_CODEC, **RANKED, return_text=True, raw_scores=True, truncate=False)
        assert (decoded.request.truncate, decoded.request.raw_scores) == (False, True)
        body = encode(RERANK_CODEC, decoded, ScoreAnswer([-3.0, 2.5, 0.0], 9))
        assert body[0] == {"index": 1, "text": "b", "score": 2.5}

    def test_classifier_of_several_labels_is_refused(self) -> None:
        assert_refused(RERANK_CODEC, "model", "one label", **RANKED, model="classify")


class TestTokenize:
    def test_tokens_show_their_text(self) -> None:
        decoded = decode(TOKENIZE_CODEC, inputs=["Ab c", ""], add_special_tokens=None, prompt_name=None)
        assert decoded.request == SpansRequest(("Ab c", ""))
        answer = SpansAnswer([[1, 7, 8], []], [["[CLS]", "ab", "c"], []], [[None, (0, 2), (3, 4)], []])
        body = encode(TOKENIZE_CODEC, decoded, answer)
        assert body == [
            [
                {"id": 1, "text": "[CLS]", "special": True, "start": None, "stop": None},
                {"id": 7, "text": "Ab", "special": False, "start": 0, "stop": 2},
                {"id": 8, "text": "c", "special": False, "start": 3, "stop": 4},
            ],
            [],
        ]
        check(TeiTokens, body)

    def test_special_tokens_are_omitted_on_request(self) -> None:
        assert decode(TOKENIZE_CODEC, inputs="a", add_special_tokens=False).request == SpansRequest(("a",), False)


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "code", "kind"),
        [
            (400, "invalid_json", "Validation"),
            (404, "model_not_found", "Validation"),
            (413, "too_large", "Validation"),
            (429, "quota_exceeded", "Overloaded"),
            (500, "internal", "Backend"),
            (503, "overloaded", "Overloaded"),
            (503, "loading", "Unhealthy"),
            (504, "deadline_exceeded", "Backend"),
        ],
    )
    def test_error_has_message_and_type(self, status: int, code: str, kind: str) -> None:
        body = orjson.loads(EMBED_CODEC.error_body(ErrorReply(status, code, "why: because"), "abc-1"))
        assert body == {"error": "why: because", "error_type": kind}
        check(TeiErrorResponse, body)

    @pytest.mark.parametrize(
        ("codec", "field", "named"),
        [
            (EMBED_CODEC, "text[3]", "inputs[3]"),
            (PREDICT_CODEC, "text", "inputs"),
            (PREDICT_CODEC, "pairs[3]", "inputs[3]"),
            (RERANK_CODEC, "pairs[3][0]", "query"),
            (RERANK_CODEC, "pairs[3][1]", "texts[3]"),
            (SIMILARITY_CODEC, "pairs[3][1]", "inputs.sentences[3]"),
            (TOKENIZE_CODEC, "text[0]", "inputs[0]"),
        ],
    )
    def test_error_names_field_of_body(self, codec: TeiCodec, field: str, named: str) -> None:
        body = orjson.loads(codec.error_body(to_http(InvalidInput(field, "is 3")), "abc-1"))
        assert body["error"] == f"{named}: is 3"
