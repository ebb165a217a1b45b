"""Bodies of searches: read as they are, in pieces when they are long, and refused with an error of the request."""

import json
from base64 import b64encode
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.protocols.shared.codec import Target
from app.protocols.shared.errors import InvalidJson
from extensions.search.collections.contract import Metric
from extensions.search.operations.requests import DeleteRequest, SearchRequest, UpsertRequest
from extensions.search.operations.similarity import SimilarityRequest
from extensions.search.protocol.collections import DELETE_CODEC, SEARCH_CODEC
from extensions.search.protocol.similarity import SIMILARITY_CODEC
from extensions.search.protocol.upserts import UPSERT_CODEC
from frameworks.core.errors import InvalidInput, UnknownField
from frameworks.core.filters import AnyOf
from tests.app.protocols.decoding import decode_body

CODECS: dict[str, Any] = {
    "similarity": SIMILARITY_CODEC,
    "search": SEARCH_CODEC,
    "upsert": UPSERT_CODEC,
    "delete": DELETE_CODEC,
}
SAMPLES: dict[str, dict[str, Any]] = {
    "similarity": {
        "items": [[1, 2.5]], "others": [[3, 4], [0, 1e3]], "metric": "dot", "top_k": 3, "timeout_ms": 9, "priority": 2,
    },
    "search": {
        "query": ["a", "b"], "top_k": 3, "filter": {"year": {"gte": 3}}, "rerank_model": "m", "candidates": 9,
        "include_vectors": True, "include_text": False, "include_metadata": False, "exact": True,
    },
    "upsert": {
        "records": [
            {"id": "a", "vector": [1, 2], "text": "x [", "metadata": {"tags": ["y", "z"], "n": 3, "ok": True}},
            {"id": "b", "image": b64encode(b"file").decode(), "metadata": None},
        ]
    },
    "delete": {"ids": ["a", "b"], "priority": 9},
}  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["id", "vector", "image", "text", "gte", "$or", "x"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def decode(name: str, body: object) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode_body(
        CODECS[name], content, Target(kind="collection", resource="docs"), lambda *_: pytest.fail("no model is needed")
    )


def test_search_is_read_with_all_options() -> None:
    decoded = decode("search", SAMPLES["search"])
    request: SearchRequest = decoded.request
    assert (request.collection, request.queries, request.is_list, request.top_k) == ("docs", ["a", "b"], True, 3)
    assert (request.rerank_model, request.candidates, request.include_vectors, request.exact) == ("m", 9, True, True)
    assert not decoded.form.include_text


def test_vector_queries_keep_their_form() -> None:
    one, several = decode("search", {"query": [1, 2]}).request, decode("search", {"query": [[1, 2], [3, 4]]}).request
    assert (one.queries.tolist(), one.is_list) == ([[1, 2]], False)
    assert (several.queries.tolist(), several.is_list) == ([[1, 2], [3, 4]], True)
    assert one.queries.dtype == np.float32


def test_records_are_read_in_order() -> None:
    request: UpsertRequest = decode("upsert", SAMPLES["upsert"]).request
    first, second = request.records
    assert first.vector is not None
    assert (first.id, first.vector.tolist(), first.text) == ("a", [1, 2], "x [")
    assert first.metadata == {"tags": ["y", "z"], "n": 3, "ok": True}
    assert (second.id, second.vector, second.image, second.metadata) == ("b", None, b"file", None)


def test_delete_has_one_selection() -> None:
    by_filter: DeleteRequest = decode("delete", {"filter": {"a": 1}}).request
    assert (by_filter.ids, by_filter.where) == (None, AnyOf("a", (1.0,)))
    assert decode("delete", {"all": True}).request.where is not None
    assert decode("delete", SAMPLES["delete"]).request.ids == ["a", "b"]


def test_similarity_reads_vectors_as_float32() -> None:
    request: SimilarityRequest = decode("similarity", SAMPLES["similarity"]).request
    assert isinstance(request.others, np.ndarray)
    assert (request.metric, request.top_k, request.others.tolist()) == (Metric.DOT, 3, [[3, 4], [0, 1000]])


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data())
def test_changed_body_is_read_or_refused(name: str, data: st.DataObject) -> None:
    body = json.loads(json.dumps(SAMPLES[name]))
    for _ in range(data.draw(st.integers(1, 3))):
        field = data.draw(st.sampled_from([*body, "query", "records", "filter", "x"]))
        if field == "records" and body.get("records") and data.draw(st.booleans()):
            record = data.draw(st.sampled_from(body["records"])) if isinstance(body["records"], list) else None
            if isinstance(record, dict):
                name_of_member = data.draw(st.sampled_from(["id", "vector", "text", "image", "metadata", "y"]))
                record[name_of_member] = data.draw(VALUES)
            continue
        body[field] = data.draw(VALUES)
    with suppress(InvalidInput, UnknownField):  # any other error fails the test
        assert decode(name, body).request is not None


@pytest.mark.parametrize("name", CODECS)
@given(cut=st.integers(0, 400), more=st.binary(max_size=3))
def test_damaged_json_is_refused(name: str, cut: int, more: bytes) -> None:
    content = json.dumps(SAMPLES[name]).encode()
    damaged = content[: cut % len(content)] + more
    with suppress(ValueError):
        json.loads(damaged)
        return  # complete again
    with pytest.raises((InvalidJson, InvalidInput, UnknownField)):
        decode(name, damaged)


@pytest.mark.parametrize("rows", [60_000, 3])
def test_long_body_is_read_in_pieces(rows: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)
    body = {"items": vectors.tolist(), "top_k": 1}
    assert np.array_equal(decode("similarity", body).request.items, vectors)
    texts = [f"text {i} [" for i in range(rows)]
    assert decode("similarity", {"items": texts, "others": ["a"]}).request.items == texts


def test_long_upsert_is_read_in_pieces() -> None:
    vectors = np.random.default_rng(1).normal(size=(3000, 64)).astype(np.float32)
    body = {
        "ids": [f"r{i}" for i in range(3000)],
        "vectors": vectors.tolist(),
        "texts": ["["] * 3000,
        "metadata": [{"n": i} for i in range(3000)],
    }
    read = decode("upsert", body).request.records
    assert [each.id for each in read] == [f"r{i}" for i in range(3000)]
    assert np.array_equal(np.stack([each.vector for each in read]), vectors)
    assert (read[17].text, read[17].metadata) == ("[", {"n": 17})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"ids": []}, "ids: expected 1 to 10000 ids, got 0"),
        ({"ids": "a"}, "ids: expected a list of strings, got a string"),
        ({"vectors": [[1]]}, "ids: expected a list of strings, got null"),
        ({"ids": ["a"], "vectors": [[1], [2]]}, "vectors: expected 1 items as in ids, got 2"),
        ({"ids": ["a"], "vectors": [[1]], "metadata": [1]}, r"metadata\[0\]: expected an object, got a number"),
        ({"ids": ["a", ""], "texts": ["a", "b"]}, r"ids\[1\]: expected a non-empty string"),
        ({"ids": ["a"], "texts": [None]}, r"texts\[0\]: expected a text, as there are no vectors"),
        ({"ids": ["a"], "records": []}, "ids: expected records or ids with lists, got both"),
    ],
)
def test_wrong_list_of_upsert_is_named(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        decode("upsert", body)
