"""The codec of upserts."""

from collections.abc import Sequence
from typing import Any

import orjson

from app.protocols.shared.bodies import got
from app.protocols.shared.codec import AnswerContext, Target
from app.protocols.shared.json.body import Document, Node, describe_type
from extensions.search.operations.requests import ChangeAnswer, GivenRecord, UpsertRequest
from extensions.search.protocol.bodies import MAX_RECORDS, UpsertCollection, UpsertRecord
from extensions.search.protocol.codec import OperationRequest, SearchBody, SearchCodec
from extensions.search.protocol.collections import named, with_options
from extensions.search.protocol.reading import Fields, read_image, read_object, read_options, read_vector, read_vectors
from frameworks.core.errors import InvalidInput
from frameworks.core.vector_search import Vectors

_COLUMNS = ("ids", "vectors", "texts", "metadata")


class UpsertCodec(SearchCodec):
    """As Codec of app/protocols/shared/codec.py."""

    __slots__ = ()

    def decode(self, body: bytes, target: Target) -> OperationRequest:
        name = named(target)
        return read_object(body, UpsertCollection, lambda document, fields: _read_upsert(name, document, fields))

    def is_long_to_write(self, decoded: OperationRequest, answer: ChangeAnswer) -> bool:
        return False

    def encode(self, decoded: OperationRequest, answer: ChangeAnswer, context: AnswerContext) -> bytes:
        content: dict[str, Any] = {"collection": decoded.request.collection, "upserted": answer.count}
        if answer.tokens is not None:
            content["tokens"] = answer.tokens
        return orjson.dumps({**content, "latency_ms": round(context.latency_ms, 3)})


def _read_upsert(name: str, document: Document, fields: Fields) -> OperationRequest:
    by_hand = ("records", *_COLUMNS)
    options = read_options(document, fields, SearchBody, by_hand)
    columns = [each for each in _COLUMNS if each in fields]
    if "records" in fields and columns:
        raise InvalidInput(columns[0], "expected records or ids with lists, got both; leave one out")
    records = _read_columns(document, fields) if columns else _read_records(document, fields.get("records"))
    return with_options(UpsertRequest(name, records, bool(columns)), options)


def _read_columns(document: Document, fields: Fields) -> list[GivenRecord]:
    ids = _read_list(document, fields.get("ids"), "ids", "strings")
    if not 1 <= len(ids) <= MAX_RECORDS:
        raise InvalidInput("ids", f"expected 1 to {MAX_RECORDS} ids, got {len(ids)}")
    count = len(ids)
    vectors: Sequence[Vectors | None] = [None] * count
    if "vectors" in fields:
        vectors = list(read_vectors(document, fields["vectors"], "vectors", MAX_RECORDS))
    texts, metadata = ([None] * count, [None] * count)
    if "texts" in fields:
        texts = _read_list(document, fields["texts"], "texts", "strings")
    if "metadata" in fields:
        metadata = _read_list(document, fields["metadata"], "metadata", "objects")
    for field, values in (("vectors", vectors), ("texts", texts), ("metadata", metadata)):
        if len(values) != count:
            raise InvalidInput(field, f"expected {count} items as in ids, got {len(values)}")
    records = [GivenRecord(*each[:3], None, each[3]) for each in zip(ids, vectors, texts, metadata, strict=True)]
    for index, record in enumerate(records):
        _check_column_values(record, index)
    return records


def _check_column_values(record: GivenRecord, index: int) -> None:
    if not isinstance(record.id, str) or not record.id:
        raise InvalidInput(f"ids[{index}]", f"expected a non-empty string, got {got(record.id)}")
    if record.text is not None and not isinstance(record.text, str):
        raise InvalidInput(f"texts[{index}]", f"expected a string, got {describe_type(record.text)}")
    if record.text is None and record.vector is None:
        raise InvalidInput(f"texts[{index}]", "expected a text, as there are no vectors, got none")
    if record.metadata is not None and not isinstance(record.metadata, dict):
        raise InvalidInput(f"metadata[{index}]", f"expected an object, got {describe_type(record.metadata)}")


def _read_list(document: Document, node: Node, field: str, kind: str) -> list[Any]:
    if not document.is_array(node):
        raise InvalidInput(field, f"expected a list of {kind}, got {describe_type(node)}")
    values: list[Any] = document.python(node)
    return values


def _read_records(document: Document, node: Node) -> list[GivenRecord]:
    if not document.is_array(node):
        raise InvalidInput("records", f"expected a list of records, got {describe_type(node)}")
    nodes = document.items(node)
    if not 1 <= len(nodes) <= MAX_RECORDS:
        raise InvalidInput("records", f"expected 1 to {MAX_RECORDS} records, got {len(nodes)}")
    return [_read_record(document, each, f"records[{index}]") for index, each in enumerate(nodes)]


def _read_record(document: Document, node: Node, field: str) -> GivenRecord:
    if not document.is_object(node):
        raise InvalidInput(field, f"expected an object with id, got {describe_type(node)}")
    members = document.members(node, UpsertRecord.model_fields, f"{field}.")
    given = {name: each for name, each in members.items() if each is not None}
    record_id = given.get("id")
    if not isinstance(record_id, str) or not record_id:
        raise InvalidInput(f"{field}.id", f"expected a non-empty string, got {got(record_id)}")
    text = given.get("text")
    if text is not None and not isinstance(text, str):
        raise InvalidInput(f"{field}.text", f"expected a string, got {describe_type(text)}")
    if given.keys().isdisjoint(("vector", "text", "image")):
        raise InvalidInput(field, "expected one of vector, text and image, got none")
    metadata = given.get("metadata")
    if metadata is not None and not document.is_object(metadata):
        raise InvalidInput(f"{field}.metadata", f"expected an object, got {describe_type(metadata)}")
    return GivenRecord(
        record_id,
        read_vector(document, given["vector"], f"{field}.vector") if "vector" in given else None,
        text,
        read_image(given, field) if "image" in given else None,
        None if metadata is None else document.python(metadata),
    )


UPSERT_CODEC = UpsertCodec()
