"""Bodies that are made to take long or to break a parser: each is refused early, and the message names the field."""

import json
from typing import Any

import pytest

from app.protocols.shared.codec import Target
from app.protocols.shared.errors import InvalidJson
from extensions.search.collections.validation import checked_records
from extensions.search.protocol.collections import DELETE_CODEC, SEARCH_CODEC
from extensions.search.protocol.upserts import UPSERT_CODEC
from frameworks.core.errors import FieldError, InvalidInput
from frameworks.core.vector_search import Record
from tests.app.protocols.decoding import decode_body
from tests.extensions.search.collections.model import random_vectors

CODECS: dict[str, Any] = {"search": SEARCH_CODEC, "upsert": UPSERT_CODEC, "delete": DELETE_CODEC}
DEPTHS = (17, 40, 900, 5000, 30_000)
DEEP = {
    "filter": ("search", b'{"query": "a", "filter": ', b'{"$not": ', b'{"a": 1}', b"}", b"}"),
    "filter.$and": ("search", b'{"query": "a", "filter": ', b'{"$and": [', b'{"a": 1}', b"]}", b"}"),
    "filter.a.in": ("search", b'{"query": "a", "filter": {"a": {"in": ', b"[", b"1", b"]", b"}}}"),
    "query": ("search", b'{"query": ', b"[", b"1", b"]", b"}"),
    "records[0].vector": ("upsert", b'{"records": [{"id": "a", "vector": ', b"[", b"1", b"]", b"}]}"),
    "vectors": ("upsert", b'{"ids": ["a"], "vectors": ', b"[", b"1", b"]", b"}"),
    "ids": ("delete", b'{"ids": ', b"[", b'"a"', b"]", b"}"),
}
LARGE = {
    "ids of a delete": ("delete", {"ids": ["x"] * 200_000}, "body: expected at most 131072 values"),
    "ids of an upsert": ("upsert", {"ids": ["x"] * 200_000, "texts": ["y"]}, "body: expected at most 131072 values"),
    "records": ("upsert", {"records": [{"id": "x", "text": "y"}] * 80_000}, "body: expected"),
    "some records": ("upsert", {"records": [{"id": "x", "text": "y"}] * 11_000}, "records: expected 1 to 10000"),
    "some ids": ("delete", {"ids": ["x"] * 11_000}, "ids: expected"),
    "queries": ("search", {"query": ["x"] * 2000}, "query: expected 1 to 1024 texts, got 2000"),
    "vectors": ("search", {"query": [[1]] * 2000}, "query: expected 1 to 1024 vectors, got 2000"),
    "numbers": ("search", {"query": [1] * 70_000}, "query: expected vectors of 1 to 65536 numbers, got 70000"),
    "conditions": (
        "search",
        {"query": "x", "filter": {str(i): 1 for i in range(5000)}},
        "filter.256: expected at most",
    ),
    "parts": ("search", {"query": "x", "filter": {"$or": [{"a": 1}] * 5000}}, "filter.$or[255].a: expected at most"),
    "values": ("search", {"query": "x", "filter": {"a": {"in": [1] * 5000}}}, "filter.a.in: expected at most 4096"),
    "key": ("search", {"query": "x", "filter": {"k" * 500_000: 1}}, "filter.kkkkk"),
    "operator": ("search", {"query": "x", "filter": {"k": {"o" * 500_000: 1}}}, "filter.k.ooooo"),
    "number": ("search", {"query": "x", "filter": {"a": {"gt": 10**300}}, "top_k": 10**30}, "top_k: expected"),
    "element": ("search", {"query": [1e200]}, "query: expected numbers in the range of float32, got 1e+200"),
    "negative": ("search", {"query": "x", "top_k": -1}, "top_k: expected an integer from 1 to 10000, got -1"),
    "candidates": ("search", {"query": "x", "rerank_model": "m", "candidates": 10**9}, "candidates: expected"),
}


def decode(name: str, body: bytes) -> Any:
    return decode_body(
        CODECS[name], body, Target(kind="collection", resource="docs"), lambda *_: pytest.fail("no model is needed")
    )


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("field", DEEP)
def test_deep_nesting_is_refused(field: str, depth: int) -> None:
    name, before, opening, inner, closing, after = DEEP[field]
    body = before + opening * depth + inner + closing * depth + after
    with pytest.raises((InvalidInput, InvalidJson)) as refused:
        decode(name, body)
    message = str(refused.value)
    # Beyond the depth of a parser the error has the place in the body instead.
    assert message.startswith((field, "the body is not valid JSON: ")), message[:200]
    assert len(message) < 600


@pytest.mark.parametrize("case", LARGE)
def test_large_part_is_refused_by_name(case: str) -> None:
    name, body, message = LARGE[case]
    with pytest.raises(FieldError) as refused:
        decode(name, json.dumps(body).encode())
    assert str(refused.value).startswith(message), str(refused.value)[:300]
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"9" * 400])
@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("search", b'{"query": [%s]}'),
        ("search", b'{"query": "a", "top_k": %s}'),
        ("search", b'{"query": "a", "filter": {"a": {"gt": %s}}}'),
        ("upsert", b'{"records": [{"id": "a", "vector": [1, %s]}]}'),
        ("upsert", b'{"records": [{"id": "a", "vector": [1], "metadata": {"a": %s}}]}'),
        ("delete", b'{"filter": {"a": %s}}'),
    ],
)
def test_numbers_beyond_json_are_refused(name: str, body: bytes, text: bytes) -> None:
    with pytest.raises((InvalidInput, InvalidJson)):
        decode(name, body % text)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"a": "x" * 70_000}, "records[0].metadata: expected at most 65536 bytes of JSON, got 70008"),
        ({str(i): 1 for i in range(65)}, "records[0].metadata: expected at most 64 keys, got 65"),
        ({"k" * 200: 1}, "records[0].metadata: expected keys of 1 to 128 characters"),
        ({"$or": 1}, "records[0].metadata: expected keys of 1 to 128 characters"),
        ({"a": [[1]]}, "records[0].metadata.a: expected a string, a finite number"),
        ({"a": {"b": 1}}, "records[0].metadata.a: expected a string, a finite number"),
        ({"a": 10**30}, "records[0].metadata: expected JSON"),
        ({"a": float("inf")}, "records[0].metadata.a: expected a string, a finite number"),
    ],
)
def test_enormous_metadata_is_refused(metadata: Any, message: str) -> None:
    with pytest.raises(FieldError) as refused:
        checked_records([Record("a", random_vectors(1, 4)[0], None, metadata)], 4)
    assert str(refused.value).startswith(message), str(refused.value)[:300]
