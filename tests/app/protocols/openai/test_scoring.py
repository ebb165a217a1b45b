"""/v1/rerank and /v1/score: pairs of a body, and scores in a response."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.openai.codec import OpenAiCodec
from app.protocols.openai.responses import RerankResponse, ScoreResponse
from app.protocols.openai.scoring import RERANK_CODEC, SCORE_CODEC
from app.protocols.shared.errors import to_http
from frameworks.core.errors import InvalidInput, UnknownField
from frameworks.types import PairRequest, ScoreAnswer
from tests.app.protocols.openai.decoding import assert_refused, decode, decode_error, encode

QUERY = {"model": "cross-encoder", "query": "q", "documents": ["a", "b", "c"]}


class TestRerank:
    def test_query_is_paired_with_each_document(self) -> None:
        for model in ("cross-encoder", "embed"):
            decoded = decode(RERANK_CODEC, **QUERY | {"model": model})
            assert decoded.request == PairRequest([("q", "a"), ("q", "b"), ("q", "c")])

    def test_documents_as_objects(self) -> None:
        decoded = decode(RERANK_CODEC, **QUERY | {"documents": [{"text": "a"}, "b"], "truncate": False})
        assert decoded.request == PairRequest([("q", "a"), ("q", "b")], truncate=False)

    def test_results_are_ordered_by_score(self) -> None:
        body = encode(RERANK_CODEC, decode(RERANK_CODEC, **QUERY), ScoreAnswer([0.25, 0.75, 0.25], 9))
        assert body == {
            "id": "rerank-abc-1",
            "model": "llama",
            "usage": {"prompt_tokens": 9, "total_tokens": 9},
            "results": [
                {"index": 1, "relevance_score": 0.75},
                {"index": 0, "relevance_score": 0.25},
                {"index": 2, "relevance_score": 0.25},
            ],
        }
        RerankResponse.model_validate(body, strict=True)

    def test_two_numbers_of_results_are_refused(self) -> None:
        assert_refused(RERANK_CODEC, "top_k", "expected 2, as top_n", **QUERY | {"top_n": 2, "top_k": 1})

    @pytest.mark.parametrize("name", ["top_n", "top_k"])
    def test_top_n_with_documents(self, name: str) -> None:
        decoded = decode(RERANK_CODEC, **QUERY | {name: 1, "return_documents": True})
        body = encode(RERANK_CODEC, decoded, ScoreAnswer([0.25, 0.5, 0.75], 9))
        assert body["results"] == [{"index": 2, "relevance_score": 0.75, "document": {"text": "c"}}]

    @given(st.lists(st.floats(0, 1), max_size=8), st.integers(1, 9))
    def test_results_hold_index_and_score_of_best(self, scores: list[float], top_n: int) -> None:
        decoded = decode(RERANK_CODEC, **QUERY | {"documents": ["a"] * len(scores), "top_n": top_n})
        results = encode(RERANK_CODEC, decoded, ScoreAnswer(scores, 1))["results"]
        assert [each["relevance_score"] for each in results] == sorted(scores, reverse=True)[:top_n]
        assert all(scores[each["index"]] == each["relevance_score"] for each in results)
        assert len({each["index"] for each in results}) == len(results)

    @pytest.mark.parametrize(
        ("field", "value", "where"),
        [
            ("query", None, "query"),
            ("query", ["q"], "query"),
            ("documents", None, "documents"),
            ("documents", ["a", 1], "documents[1]"),
            ("documents", [{"text": 1}], "documents[0].text"),
            ("top_n", -1, "top_n"),
            ("return_documents", 1, "return_documents"),
            ("max_chunks_per_doc", 2, "max_chunks_per_doc"),
        ],
    )
    def test_invalid_value_is_refused(self, field: str, value: object, where: str) -> None:
        assert_refused(RERANK_CODEC, where, **QUERY | {field: value})

    def test_unknown_field_of_document_is_refused(self) -> None:
        error = decode_error(RERANK_CODEC, **QUERY | {"documents": ["a", {"text": "a", "title": "b"}]})
        assert isinstance(error, UnknownField)
        assert error.field == "documents[1].title"


class TestScore:
    @pytest.mark.parametrize(
        ("one", "other", "pairs"),
        [
            ("q", "a", [("q", "a")]),
            ("q", ["a", "b"], [("q", "a"), ("q", "b")]),
            ("q", [], []),
            (["p", "q"], ["a", "b"], [("p", "a"), ("q", "b")]),
            (["q"], ["a"], [("q", "a")]),
            (["q"], "a", [("q", "a")]),
        ],
    )
    def test_sides_are_paired(self, one: object, other: object, pairs: list[tuple[str, str]]) -> None:
        for first, second in (("text_1", "text_2"), ("queries", "documents")):
            decoded = decode(SCORE_CODEC, **{"model": "cross-encoder", first: one, second: other})
            assert decoded.request == PairRequest(pairs)

    def test_scores_are_in_order_of_pairs(self) -> None:
        decoded = decode(SCORE_CODEC, model="embed", text_1="q", text_2=["a", "b"])
        body = encode(SCORE_CODEC, decoded, ScoreAnswer([0.25, -0.75], 9))
        assert body == {
            "id": "score-abc-1",
            "object": "list",
            "created": 1_700_000_000,
            "model": "llama",
            "data": [{"index": 0, "object": "score", "score": 0.25}, {"index": 1, "object": "score", "score": -0.75}],
            "usage": {"prompt_tokens": 9, "total_tokens": 9},
        }
        ScoreResponse.model_validate(body, strict=True)

    @pytest.mark.parametrize(
        ("fields", "where"),
        [
            ({}, "text_1"),
            ({"text_1": "q"}, "text_2"),
            ({"documents": "q"}, "queries"),
            ({"text_1": "q", "documents": "a"}, "documents"),
            ({"text_1": ["p", "q"], "text_2": ["a"]}, "text_2"),
            ({"text_1": ["p", "q"], "text_2": "a"}, "text_2"),
            ({"text_1": ["q"], "text_2": ["a", "b"]}, "text_2"),
        ],
    )
    def test_incomplete_or_unequal_sides_are_refused(self, fields: dict[str, object], where: str) -> None:
        assert_refused(SCORE_CODEC, where, **{"model": "cross-encoder", **fields})


@pytest.mark.parametrize("codec", [RERANK_CODEC, SCORE_CODEC])
def test_classifier_of_several_labels_is_refused(codec: OpenAiCodec) -> None:
    fields = {**QUERY} if codec is RERANK_CODEC else {"text_1": "a", "text_2": "b"}
    assert_refused(codec, "model", "got a model with 2", **fields | {"model": "classify"})


@pytest.mark.parametrize(
    ("codec", "field", "param"),
    [
        (RERANK_CODEC, "pairs[3][0]", "query"),
        (RERANK_CODEC, "pairs[3][1]", "documents[3]"),
        (RERANK_CODEC, "pairs[3]", "documents[3]"),
        (RERANK_CODEC, "top_n", "top_n"),
        (SCORE_CODEC, "pairs[3][0]", "text_1[3]"),
        (SCORE_CODEC, "pairs[3][1]", "text_2[3]"),
        (SCORE_CODEC, "pairs[3]", "text_2[3]"),
        (SCORE_CODEC, "model", "model"),
    ],
)
def test_error_field_is_named_as_in_body(codec: OpenAiCodec, field: str, param: str) -> None:
    error = orjson.loads(codec.error_body(to_http(InvalidInput(field, "too long")), "abc-1"))["error"]
    assert (error["param"], error["message"]) == (param, f"{param}: too long")


def test_fields_of_rerank_are_unknown_to_score() -> None:
    assert isinstance(decode_error(SCORE_CODEC, model="embed", query="a", documents=["b"]), UnknownField)


def test_many_documents_are_read_as_few() -> None:
    documents = [{"text": "a"}, "b"] * 500
    pairs = decode(RERANK_CODEC, model="embed", query="q", documents=documents).request.pairs
    assert pairs == [("q", "a"), ("q", "b")] * 500
    for wrong in ({"text": 5}, {"text": "a", "title": "b"}, {}):
        error = decode_error(RERANK_CODEC, model="embed", query="q", documents=[*documents, wrong])
        assert "documents[1000]" in str(error)
