"""Write and read the searches and changes of collections that workers send to the supervisor, and their answers."""

from typing import Any

import msgspec
import numpy as np
import orjson
from msgspec import Struct

from extensions.search.collections.contract import CheckedRecords
from frameworks.core.channel.arrays import ArrayWriter, array_reader
from frameworks.core.channel.messages import ChannelMessage, ProtocolError
from frameworks.core.filters import Filter, filter_from_list, filter_to_list
from frameworks.core.vector_search import Hit, Vectors
from frameworks.models.replicas.messages import ControlRequest, Reply


class _Call(Struct, frozen=True, array_like=True, tag=True):
    pass


class SearchCall(_Call, frozen=True):
    """As ServedCollection.search. `vectors`: float32 [n, d]. `where`: of `filter_to_list`."""

    vectors: Any
    top_k: int
    where: list[Any] | None
    include_vectors: bool
    is_exact: bool


class UpsertCall(_Call, frozen=True):
    """As Collection.upsert_checked. `metadata`: as JSON."""

    ids: list[str]
    vectors: Any
    texts: list[str | None]
    metadata: list[bytes]

    @classmethod
    def of(cls, records: CheckedRecords) -> "UpsertCall":
        return cls(records.ids, records.vectors, records.texts, records.encoded)

    def records(self) -> CheckedRecords:
        metadata = [orjson.loads(each) for each in self.metadata]
        return CheckedRecords(self.ids, _array(self.vectors), self.texts, metadata, self.metadata)


class DeleteCall(_Call, frozen=True):
    """As ServedCollection.delete."""

    ids: list[str] | None
    where: list[Any] | None


Call = SearchCall | UpsertCall | DeleteCall
_encoder = msgspec.msgpack.Encoder(enc_hook=ArrayWriter().write)
_calls: msgspec.msgpack.Decoder[Call] = msgspec.msgpack.Decoder(Call, ext_hook=array_reader())


def _checked_array(_: type, value: object) -> object:
    if isinstance(value, np.ndarray):
        return value
    raise ValueError(f"expected an array, got {type(value).__name__}")


_hits = msgspec.msgpack.Decoder(list[list[Hit]], ext_hook=array_reader(), dec_hook=_checked_array)


def encode_call(call: Call) -> bytes:
    """Return a call as bytes."""
    return _encoder.encode(call)


def decode_call(content: bytes) -> Call:
    """Return the call of `encode_call`. Raises ProtocolError."""
    try:
        return _calls.decode(content)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"collection: expected a call, got {error}") from None


def encode_hits(hits: list[list[Hit]]) -> bytes:
    """Return the hits of a search as bytes."""
    return _encoder.encode(hits)


def decode_hits(content: bytes) -> list[list[Hit]]:
    """Return the hits of `encode_hits`."""
    return _hits.decode(content)


def vectors_of(call: SearchCall) -> Vectors:
    """Return the queries of a search, float32 [n, d]."""
    return _array(call.vectors)


def where_of(call: SearchCall | DeleteCall) -> Filter | None:
    """Return the filter of a call."""
    return None if call.where is None else filter_from_list(call.where)


def plain_filter(where: Filter | None) -> list[Any] | None:
    """Return a filter as calls have it."""
    return None if where is None else filter_to_list(where)


def _array(value: object) -> Vectors:
    if not isinstance(value, np.ndarray):
        raise ProtocolError("collection: expected an array of vectors, got another value")
    return value


class CollectionCallPart(ChannelMessage, frozen=True):
    """The next part of the call `id`, which follows."""

    id: int
    content: bytes


class CollectionCall(ControlRequest, frozen=True):
    """Search or change a collection. Answered by CollectionAnswer.

    `content`: the last part of the bytes of `encode_call`; those before it are CollectionCallParts.
    """

    collection: str
    content: bytes


class CollectionAnswerPart(ChannelMessage, frozen=True):
    """The next part of the answer to the call `id`, which follows."""

    id: int
    content: bytes


class CollectionAnswer(Reply, frozen=True):
    """`count`: of changed records. `content`: the last part of the bytes of `encode_hits`; "" after a change."""

    count: int
    content: bytes = b""


class CreatedCollections(ControlRequest, frozen=True):
    """The collections that were created at run time, as JSON of their entries. Answered by CollectionsNoted."""

    entries: list[bytes]


class CollectionsNoted(Reply, frozen=True):
    """Requests of the worker find these collections from now on."""


TO_WORKER = (CollectionAnswerPart, CollectionAnswer, CreatedCollections)
FROM_WORKER = (CollectionCallPart, CollectionCall, CollectionsNoted)
