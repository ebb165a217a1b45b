"""Messages between a worker and the supervisor, which has the collections open."""

from frameworks.engine.process.wire.messages import EngineMessage
from frameworks.replicas.messages import ControlRequest, Reply


class CollectionCallPart(EngineMessage, frozen=True):
    """The next part of the call `id`, which follows."""

    id: int
    content: bytes


class CollectionCall(ControlRequest, frozen=True):
    """Search or change a collection. Answered by CollectionAnswer.

    `content`: the last part of the bytes of `encode_call`; those before it are CollectionCallParts.
    """

    collection: str
    content: bytes


class CollectionAnswerPart(EngineMessage, frozen=True):
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
