"""Define the messages about models between the supervisor and its workers.

The supervisor decides; a worker applies. Numbered changes are applied in order, and each is answered by Applied.
"""

from typing import Any

from msgspec import Struct

from frameworks.core.channel.messages import ChannelMessage
from frameworks.core.devices import Device
from frameworks.engine.process.wire.messages import BatchDeltas, ErrorState, StepDeltas


class Reply(ChannelMessage, frozen=True):
    """The answer to a message with this `id`."""

    id: int


class ControlRequest(ChannelMessage, frozen=True):
    """A message that is answered by one Reply of the same `id`. Each side numbers its own."""

    id: int


class Withdraw(ChannelMessage, frozen=True):
    """The sender of the ControlRequest `id` does not wait for the reply any more."""

    id: int


class VersionState(Struct, frozen=True, array_like=True):
    """One version, as the supervisor has it. `path`: may be no text.

    `state`, `next_state`: of ModelState. `failure`: of the state `failed`; its load is retried in `retry_in_s`.
    `serving`: number of the load, the same in all processes; 0 for a version that is not loaded. The state is `ready`
    only for a worker that has applied Prepare for this load; until then it is `loading`, or `failed`.
    """

    version: str
    path: bytes
    state: str
    next_state: str
    waits_for_load: bool
    serving: int = 0
    load_s: float = 0.0
    memory_bytes: int = 0
    failure: ErrorState | None = None
    retry_in_s: float = 0.0


class ShareState(Struct, frozen=True, array_like=True):
    """A percentage of the requests of a model that another version gets."""

    version: str
    percent: float


class ModelState(Struct, frozen=True, array_like=True):
    """One registered model. `entry`: pickle of its settings. `isolation`: where it runs, after all rules.

    `counters`: row of the shared counters of its requests.
    """

    name: str
    framework: str
    entry: bytes
    path: bytes
    isolation: str
    counters: int
    versions: list[VersionState]
    active: str
    previous: str | None = None
    canary: ShareState | None = None
    shadow: ShareState | None = None


class ModelChanged(ChannelMessage, frozen=True):
    """The state of a model from now on, all of it. Answered by Applied when requests see it.

    A worker drains each load that was ready and is so no more: it is `draining`, or no version has it any more. A load
    that is ready although the worker has closed its engine is prepared again; until then requests wait for it.
    """

    number: int
    model: ModelState


class ModelRemoved(ChannelMessage, frozen=True):
    """The name of a model is free: all its loads are drained. Answered by Applied."""

    number: int
    name: str


class Prepare(ChannelMessage, frozen=True):
    """A version is loaded, and is about to be ready: get its engine. Answered by Applied or PrepareFailed.

    The ModelChanged with its state `ready` follows when all workers have answered. The version may be ready with
    another load. The worker may have this load already, also while it drains it: its drain then ends. `is_local`: load
    it in the worker, on `device`; else connect to each of its `num_processes` engine processes. `path`: of its files,
    which may differ from those of the load that it replaces.
    """

    number: int
    name: str
    version: str
    path: bytes
    serving: int
    is_local: bool
    device: Device
    num_processes: int = 1


class Abandon(ChannelMessage, frozen=True):
    """A load that was prepared will not be ready: close its engine, and send no Drained."""

    serving: int


class EndModelRequests(ChannelMessage, frozen=True):
    """Fail the requests of a load that is being drained."""

    serving: int


class StateSent(ChannelMessage, frozen=True):
    """The new worker has applied the state of all models, and has the engines of all that are ready. Sent once."""


class ProcessLost(ChannelMessage, frozen=True):
    """An engine process has ended; the connection to it is closed, or closes at once. `label`, `message`: of Loss."""

    serving: int
    index: int
    label: str
    message: str


class Connected(Reply, frozen=True):
    """Answers Connect. The descriptors (control socket, arena of requests, arena of answers) have the number `id`.

    `spec`, `load_s`: of the process as it was loaded last.
    """

    spec: Any
    memory_bytes: int
    load_s: float


class LoadEnded(Reply, frozen=True):
    """Answers LoadForRequest: the version was loaded, or another one may have to answer; or the error."""

    error: ErrorState | None = None


class Failure(Reply, frozen=True):
    """Answers any ControlRequest that has failed."""

    error: ErrorState


class Poisonous(ChannelMessage, frozen=True):
    """A request with this digest has ended a process of the model twice. Sent by the worker that found it, and then to
    all others.
    """

    name: str
    digest: bytes


class Applied(ChannelMessage, frozen=True):
    """Prepare, ModelChanged or ModelRemoved with this number is applied."""

    number: int


class PrepareFailed(ChannelMessage, frozen=True):
    """The worker cannot get the engine of a version."""

    number: int
    error: ErrorState


class Drained(ChannelMessage, frozen=True):
    """The worker has no request to this load of a version any more, and has closed its engine.

    Sent for each load that was prepared, unless it was abandoned.
    """

    serving: int


class LoadForRequest(ControlRequest, frozen=True):
    """A request waits for a version that is not loaded."""

    name: str
    version: str


class Connect(ControlRequest, frozen=True):
    """Connect the worker to an engine process, or again after the loss of it.

    Answered by Connected when the process serves, or by Failure. `suspects`: requests that may have ended it; the
    worker runs them one at a time, and then sends Settled.
    """

    serving: int
    index: int
    suspects: int = 0


class Settled(ChannelMessage, frozen=True):
    """All suspects of the worker have an outcome."""

    serving: int
    index: int


class KillProcess(ChannelMessage, frozen=True):
    """End an engine process that has broken the protocol."""

    serving: int
    index: int
    label: str
    reason: str


class VersionUse(Struct, frozen=True, array_like=True, gc=False):
    """`last_used_s`: time.monotonic, one clock for all processes; None before the first use."""

    serving: int
    references: int
    last_used_s: float | None


class Uses(ChannelMessage, frozen=True):
    """How the worker uses the versions whose use has changed since the last message."""

    versions: list[VersionUse]


class LocalCounts(ChannelMessage, frozen=True):
    """Growth of the counts of a version that runs in the worker."""

    name: str
    version: str
    batches: BatchDeltas | None = None
    steps: StepDeltas | None = None


ModelsToWorker = (
    ModelChanged
    | ModelRemoved
    | Prepare
    | Abandon
    | EndModelRequests
    | StateSent
    | ProcessLost
    | Connected
    | LoadEnded
    | Failure
    | Poisonous
    | Withdraw
)
ModelsFromWorker = (
    Applied
    | PrepareFailed
    | Drained
    | LoadForRequest
    | Connect
    | Settled
    | KillProcess
    | Uses
    | LocalCounts
    | Poisonous
    | Failure
    | Withdraw
)
