"""/v1/rerank and /v1/score: which pairs are asked for, and how their scores are told."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.openai.codec import OpenAiCodec
from app.protocols.openai.schemas import RerankResponse, ScoreResponse
from app.protocols.openai.scoring import RERANK_FORMAT, SCORE_FORMAT
from frameworks.errors import UnknownField
from frameworks.types import PairRequest, ScoreAnswer
from tests.app.protocols.openai.requests import answer, ask, assert_refused, refusal

QUERY = {"model": "cross-encoder", "query": "q", "documents": ["a", "b", "c"]}


class TestRerank:
    def test_pairs(self) -> None:
        for model in ("cross-encoder", "embed"):
            question = ask(RERANK_FORMAT, **QUERY | {"model": model})
            assert question.request == PairRequest([("q", "a"), ("q", "b"), ("q", "c")])

    def test_documents_may_be_objects(self) -> None:
        question = ask(RERANK_FORMAT, **QUERY | {"documents": [{"text": "a"}, "b"], "truncate": False})
        assert question.request == PairRequest([("q", "a"), ("q", "b")], truncate=False)

    def test_best_first(self) -> None:
        body = answer(RERANK_FORMAT, ask(RERANK_FORMAT, **QUERY), ScoreAnswer([0.25, 0.75, 0.25], 9))
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

    def test_some_of_them_with_their_texts(self) -> None:
        question = ask(RERANK_FORMAT, **QUERY | {"top_n": 1, "return_documents": True})
        body = answer(RERANK_FORMAT, question, ScoreAnswer([0.25, 0.5, 0.75], 9))
        assert body["results"] == [{"index": 2, "relevance_score": 0.75, "document": {"text": "c"}}]

    @given(st.lists(st.floats(0, 1), max_size=8), st.integers(1, 9))
    def test_every_document_has_its_place(self, scores: list[float], top_n: int) -> None:
        question = ask(RERANK_FORMAT, **QUERY | {"documents": ["a"] * len(scores), "top_n": top_n})
        results = answer(RERANK_FORMAT, question, ScoreAnswer(scores, 1))["results"]
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
            ("documents", [{"text": "a", "title": "b"}], "documents[0]"),
            ("documents", [{"text": 1}], "documents[0].text"),
            ("top_n", 0, "top_n"),
            ("return_documents", 1, "return_documents"),
            ("max_chunks_per_doc", 2, "max_chunks_per_doc"),
        ],
    )
    def test_what_cannot_be_read(self, field: str, value: object, where: str) -> None:
        assert_refused(RERANK_FORMAT, where, **QUERY | {field: value})


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
    def test_pairs(self, one: object, other: object, pairs: list[tuple[str, str]]) -> None:
        for first, second in (("text_1", "text_2"), ("queries", "documents")):
            question = ask(SCORE_FORMAT, **{"model": "cross-encoder", first: one, second: other})
            assert question.request == PairRequest(pairs)

    def test_in_their_order(self) -> None:
        question = ask(SCORE_FORMAT, model="embed", text_1="q", text_2=["a", "b"])
        body = answer(SCORE_FORMAT, question, ScoreAnswer([0.25, -0.75], 9))
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
    def test_what_are_no_pairs(self, fields: dict[str, object], where: str) -> None:
        assert_refused(SCORE_FORMAT, where, **{"model": "cross-encoder", **fields})


@pytest.mark.parametrize("codec", [RERANK_FORMAT, SCORE_FORMAT])
def test_a_classifier_is_no_cross_encoder(codec: OpenAiCodec) -> None:
    fields = {**QUERY} if codec is RERANK_FORMAT else {"text_1": "a", "text_2": "b"}
    assert_refused(codec, "model", '"classify" has 2 labels', **fields | {"model": "classify"})


@pytest.mark.parametrize(
    ("codec", "field", "param"),
    [
        (RERANK_FORMAT, "pairs[3][0]", "query"),
        (RERANK_FORMAT, "pairs[3][1]", "documents[3]"),
        (RERANK_FORMAT, "pairs[3]", "documents[3]"),
        (RERANK_FORMAT, "top_n", "top_n"),
        (SCORE_FORMAT, "pairs[3][0]", "text_1[3]"),
        (SCORE_FORMAT, "pairs[3][1]", "text_2[3]"),
        (SCORE_FORMAT, "pairs[3]", "text_2[3]"),
        (SCORE_FORMAT, "model", "model"),
    ],
)
def test_what_is_wrong_with_a_pair_is_told_in_the_caller_s_words(codec: OpenAiCodec, field: str, param: str) -> None:
    error = orjson.loads(codec.error_body(400, "invalid_input", f"{field}: too long", "abc-1"))["error"]
    assert (error["param"], error["message"]) == (param, f"{param}: too long")


def test_fields_of_the_other_route_are_unknown() -> None:
    assert isinstance(refusal(SCORE_FORMAT, model="embed", query="a", documents=["b"]), UnknownField)
