"""Define the messages about requests between the supervisor and its workers, in addition to those about models."""

from functools import reduce
from operator import or_
from typing import Any

from msgspec import Struct

from app.observability.process_counts import ProcessCounts
from app.observability.recent_requests import FinishedRequest
from frameworks.core.channel.messages import ChannelMessage
from frameworks.core.extras import found_extensions
from frameworks.engine.process.wire.messages import ErrorState
from frameworks.engine.process.wire.serialization import PlainTenant
from frameworks.models.replicas.messages import ControlRequest, ModelsFromWorker, ModelsToWorker, Reply


class ServerStatus(ControlRequest, frozen=True):
    """`is_ready`: as GET /health/ready, from now on. Answered by StatusNoted."""

    is_ready: bool


class StatusNoted(Reply, frozen=True):
    """The worker has the status."""


class DrainWorker(ChannelMessage, frozen=True):
    """Accept no more connections, answer the requests in progress within `timeout_s`, and end."""

    timeout_s: float


class ReadAgain(ChannelMessage, frozen=True):
    """Read keys and certificates again, and log from `level` on."""

    level: str


class WorkerReady(ChannelMessage, frozen=True):
    """The worker accepts connections."""


class Sender(Struct, frozen=True, array_like=True):
    """The authenticated sender of a request: the fields of a Principal that decide what it may do and see."""

    tenant: PlainTenant
    key_id: str
    scopes: list[str]
    patterns: list[list[str]]
    collections: list[list[str]]
    is_operator: bool


class AdminCall(ControlRequest, frozen=True):
    """A request over HTTP that is no inference, authenticated. Answered by AdminAnswer.

    `method` to `server`: as in the ASGI scope, without headers that hold a key. `prefix`: of the path. `started_s`:
    time.perf_counter, one clock for all processes. `body`: None for one that is larger than MAX_MANAGEMENT_BYTES, of
    which nothing is sent.
    """

    sender: Sender
    request_id: str
    started_s: float
    method: str
    path: str
    raw_path: bytes
    prefix: str
    query_string: bytes
    headers: list[tuple[bytes, bytes]]
    http_version: str
    scheme: str
    server: tuple[str, int | None] | None
    body: bytes | None


class AdminAnswer(Reply, frozen=True):
    """The response. `code`: of an error, for the log."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    code: str = ""


class GrpcCall(ControlRequest, frozen=True):
    """A call over gRPC that is no inference, authenticated. Answered by GrpcAnswer.

    `path`: full name of the method. `message`: the serialized request.
    """

    sender: Sender
    request_id: str
    path: str
    message: bytes


class GrpcAnswer(Reply, frozen=True):
    """The serialized response; None with the fields of a GrpcError."""

    message: bytes | None
    code: str = ""
    text: str = ""
    status: int = 200
    reason: str = ""


class CollectTallies(ControlRequest, frozen=True):
    """Report the counts of the worker. Answered by Tallies."""


class TalliesReport(Struct, frozen=True, array_like=True):
    """All counts of a worker since its start.

    `content`: msgpack of app.workers.tallies.tallies.WorkerTallies. `forgotten`: number of the last ForgetModel that
    the worker has applied; 0 before the first one.
    """

    content: bytes
    process: ProcessCounts
    forgotten: int


class Tallies(Reply, frozen=True):
    """Answers CollectTallies."""

    report: TalliesReport


class TalliesChanged(ChannelMessage, frozen=True):
    """Sent every second while counts change: those of a worker that is lost are kept."""

    report: TalliesReport


class ForgetModel(ChannelMessage, frozen=True):
    """Drop the counts of a deleted model. `number`: greater than that of the one before."""

    number: int
    name: str


class FindResponse(ControlRequest, frozen=True):
    """Find the cached response of a request to the model `name`. Answered by FoundResponse.

    `digest`: of all that the response depends on.
    """

    name: str
    digest: bytes


class FoundResponse(Reply, frozen=True):
    """`answer`: msgpack of the plain answer, cached or of the run of an equal request; None without one.

    `error`: of that run. Without both, the worker runs the request. If `is_shared`, others may wait for the run: it
    ends with StoreResponse or DropRun.
    """

    answer: bytes | None = None
    error: ErrorState | None = None
    is_shared: bool = True


class StoreResponse(ChannelMessage, frozen=True):
    """The response of a request that the answer to FindResponse `id` let the worker run."""

    id: int
    answer: bytes


class DropRun(ChannelMessage, frozen=True):
    """The request of FindResponse `id` was cancelled, or its run has no response to store.

    Requests that wait for the run get the `error`; without one, the next of them runs. If not `is_shared`, its response
    cannot be sent to them, and each of them runs.
    """

    id: int
    error: ErrorState | None = None
    is_shared: bool = True


class UseNonce(ControlRequest, frozen=True):
    """Note the nonce of a signed request. Answered by NonceUsed, or by Failure where no more can be noted."""

    key_id: str
    nonce: bytes
    created_s: int


class NonceUsed(Reply, frozen=True):
    """`refusal`: why the request is refused; "" for a new nonce."""

    refusal: str = ""


class NoteFailedKey(ControlRequest, frozen=True):
    """Count a request with a wrong key from an address. Answered by FailedKeyNoted."""

    address: str


class FailedKeyNoted(Reply, frozen=True):
    """`is_delayed`: the address has had too many."""

    is_delayed: bool


class OpenFeed(ControlRequest, frozen=True):
    """Send the events of the page from now on, as a sender sees them. Answered by FeedOpened.

    `feed`: number of the view in the worker, which may be open already.
    """

    feed: int
    sender: Sender


class FeedOpened(Reply, frozen=True):
    """The first events. `number`: of the last ones that they contain."""

    number: int
    content: bytes


class FeedContent(ChannelMessage, frozen=True):
    """Further events of a view."""

    feed: int
    number: int
    content: bytes


class CloseFeed(ChannelMessage, frozen=True):
    """The last reader of a view has disconnected."""

    feed: int


class CollectRequests(ControlRequest, frozen=True):
    """Report finished requests. Answered by FinishedRequests. As RecentRequests.latest."""

    tenant: str | None
    after: int
    most: int
    request_id: str | None = None


class FinishedRequests(Reply, frozen=True):
    """`last_number`: of the latest request of the worker; 0 before the first one."""

    last_number: int
    requests: list[FinishedRequest]


class CheckLoop(ControlRequest, frozen=True):
    """Ask whether the event loop of the worker runs. Answered by LoopRuns."""


class LoopRuns(Reply, frozen=True):
    """The event loop of the worker runs."""


ToWorker = (
    ModelsToWorker
    | ServerStatus
    | CheckLoop
    | DrainWorker
    | ReadAgain
    | AdminAnswer
    | GrpcAnswer
    | CollectTallies
    | ForgetModel
    | FoundResponse
    | NonceUsed
    | FailedKeyNoted
    | FeedOpened
    | FeedContent
    | CollectRequests
)
FromWorker = (
    ModelsFromWorker
    | WorkerReady
    | LoopRuns
    | StatusNoted
    | AdminCall
    | GrpcCall
    | Tallies
    | TalliesChanged
    | FindResponse
    | StoreResponse
    | DropRun
    | UseNonce
    | NoteFailedKey
    | OpenFeed
    | CloseFeed
    | FinishedRequests
)


def messages_to_worker() -> object:
    """Return the union of all messages to a worker, with those of the extensions."""
    return _union(ToWorker, 0)


def messages_from_worker() -> object:
    """Return the union of all messages from a worker, with those of the extensions."""
    return _union(FromWorker, 1)


def _union(of_core: Any, direction: int) -> Any:
    kinds = [kind for extension in found_extensions() for kind in extension.messages()[direction]]
    return reduce(or_, kinds, of_core)
