"""Fields of known clients: those that ask for nothing are accepted, those that ask for something done or refused."""

from typing import Any

import pytest

from app.protocols.openai.codec import OpenAiCodec
from app.protocols.openai.embeddings import EMBEDDINGS_CODEC
from app.protocols.openai.scoring import RERANK_CODEC, SCORE_CODEC
from app.protocols.openai.tokens import TOKENIZE_CODEC
from app.server.build import build_routes
from frameworks.core.errors import UnknownField
from frameworks.types import PairRequest, TextRequest
from tests.app.protocols.openai.decoding import assert_refused, decode, decode_error

BASES: dict[str, dict[str, object]] = {
    "/v1/embeddings": {"model": "embed", "input": "a"},
    "/v1/rerank": {"model": "cross-encoder", "query": "q", "documents": ["a"]},
    "/v1/score": {"model": "cross-encoder", "text_1": "q", "text_2": ["a"]},
    "/v1/classify": {"model": "classify", "input": "a"},
    "/pooling": {"model": "embed", "input": "a"},
    "/v1/tokenize": {"model": "embed", "prompt": "a"},
}
CODECS = {route.path: route.codec for route in build_routes().routes if isinstance(route.codec, OpenAiCodec)}

OF_VLLM: dict[str, object] = {
    "truncate_prompt_tokens": None, "truncation_side": None, "padding": None, "priority": 0, "cache_salt": None,
    "mm_processor_kwargs": None, "media_io_kwargs": None, "use_activation": None, "user": None,
    "softmax": None, "activation": None, "request_id": None,
}  # fmt: skip
OF_INPUT: dict[str, object] = {
    **OF_VLLM, "add_special_tokens": True, "chat_template": None, "chat_template_kwargs": None,
    "add_generation_prompt": False, "continue_final_message": False,
}  # fmt: skip
OF_VECTORS: dict[str, object] = {
    "encoding_format": "float", "embed_dtype": "float32", "endianness": "native", "dimensions": None
}  # fmt: skip
OF_PAIRS: dict[str, object] = {
    **OF_VLLM, "max_tokens_per_query": 0, "max_tokens_per_doc": 0, "instruction": None, "chat_template_kwargs": None
}  # fmt: skip

DEFAULTS: dict[str, list[dict[str, object]]] = {
    "/v1/embeddings": [
        {**OF_INPUT, **OF_VECTORS},
        {"encoding_format": "float", "user": None, "dimensions": 0, "modality": "text"},  # Infinity
        {"task": None, "late_chunking": False, "embedding_type": "float", "truncate": False},  # Jina
        {"embedding_type": ["float"], "normalized": None, "return_multivector": False},
        {"input_type": None, "truncation": True},  # Voyage
    ],
    "/v1/rerank": [
        {**OF_PAIRS, "top_n": 0},
        {"return_documents": False, "raw_scores": False, "top_n": None},  # Infinity
        {"top_n": 3, "return_documents": True, "max_doc_length": None, "max_query_length": None},  # Jina
        {"return_embeddings": False},
        {"max_tokens_per_doc": 4096, "rank_fields": None, "max_chunks_per_doc": None},  # Cohere
        {"truncation": True},  # Voyage
    ],
    "/v1/score": [OF_PAIRS, {"label_token_ids": None}],
    "/v1/classify": [OF_INPUT, {"raw_scores": False}],
    "/pooling": [{**OF_INPUT, **OF_VECTORS, "task": None, "normalize": None}],
    "/v1/tokenize": [
        {
            "add_special_tokens": True, "return_token_strs": False, "add_generation_prompt": True,
            "continue_final_message": False, "chat_template": None, "chat_template_kwargs": None,
            "mm_processor_kwargs": None, "media_io_kwargs": None, "tools": None, "messages": None,
        }
    ],
}  # fmt: skip
CASES = [(path, fields) for path, all_fields in DEFAULTS.items() for fields in all_fields]


@pytest.mark.parametrize(("path", "fields"), CASES)
def test_defaults_of_clients_are_harmless(path: str, fields: dict[str, object]) -> None:
    plain = decode(CODECS[path], **BASES[path])
    changes = {"truncate": False} & fields.keys()
    request = decode(CODECS[path], **BASES[path], **fields).request
    assert changes or request == plain.request


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize("field", ["modal", "truncat", "raw_score", "n", "stream"])
def test_fields_of_no_client_are_refused(path: str, field: str) -> None:
    assert isinstance(decode_error(CODECS[path], **BASES[path], **{field: None}), UnknownField)


@pytest.mark.parametrize("path", BASES)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("modality", "image"),
        ("truncation_side", "middle"),
        ("padding", "max_length"),
        ("mm_processor_kwargs", {"a": 1}),
        ("cache_salt", "x"),
        ("request_id", "x"),
        ("truncate_prompt_tokens", 15),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "a"}]}]),
        ("instruction", "x"),
        ("embed_dtype", "float16"),
        ("endianness", "big"),
        ("late_chunking", True),
        ("task", "retrieval.query"),
        ("max_tokens_per_doc", 3),
        ("texts", ["a"]),
        ("softmax", False),
        ("label_token_ids", [1, 2]),
        ("return_embeddings", True),
        ("embedding_type", ["float", "binary"]),
    ],
)
def test_requests_for_other_answers_are_refused(path: str, field: str, value: object) -> None:
    codec = CODECS[path]
    if field in codec.fields and (path, field) != ("/v1/tokenize", "messages"):
        assert_refused(codec, field, "expected ", **BASES[path], **{field: value})


@pytest.mark.parametrize("field", ["normalize", "normalized", "use_activation"])
@pytest.mark.parametrize("value", [True, False, None])
def test_vectors_are_normalised_on_request(field: str, value: bool | None) -> None:
    decoded = decode(EMBEDDINGS_CODEC, **BASES["/v1/embeddings"], **{field: value})
    assert decoded.request == TextRequest(["a"], normalize=value)


@pytest.mark.parametrize("codec", [RERANK_CODEC, SCORE_CODEC])
@pytest.mark.parametrize(
    ("fields", "truncate", "raw"),
    [
        ({}, True, False),
        ({"raw_scores": True}, True, True),
        ({"use_activation": False}, True, True),
        ({"use_activation": True, "raw_scores": False}, True, False),
        ({"truncation": False}, False, False),
        ({"truncate": False}, False, False),
        ({"truncation_side": "left"}, "left", False),
        ({"truncation_direction": "Right"}, "right", False),
        ({"truncation_side": "left", "truncation": False}, False, False),
    ],
)
def test_pairs_are_scored_as_asked(codec: OpenAiCodec, fields: dict[str, object], truncate: Any, raw: bool) -> None:
    assert decode(codec, **BASES[codec.path], **fields).request == PairRequest([("q", "a")], truncate, raw)


@pytest.mark.parametrize(("first", "second"), [("queries", "items"), ("data_1", "data_2"), ("queries", "documents")])
def test_score_accepts_names_of_vllm(first: str, second: str) -> None:
    decoded = decode(SCORE_CODEC, **{"model": "embed", first: "q", second: ["a", "b"]})
    assert decoded.request == PairRequest([("q", "a"), ("q", "b")])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"data_1": "a", "text_2": "b"}, "data_1"),
        ({"queries": "a", "documents": "b", "items": "c"}, "items"),
        ({"data_1": "a"}, "data_2"),
    ],
)
def test_score_refuses_mixed_sides(fields: dict[str, object], field: str) -> None:
    assert_refused(SCORE_CODEC, field, "expected", model="embed", **fields)


def test_tokenize_names_field_of_tei() -> None:
    assert_refused(TOKENIZE_CODEC, "inputs", "prompt", model="embed", inputs="a")
