"""Define the messages between the server and an engine process.

A message travels as a msgpack array: its tag, which is the name of its class, then its fields. Requests, answers and
specs are the plain values of `serialization`. Times are of time.perf_counter, one clock for all processes of a machine.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct, field

from frameworks.core.channel.messages import ChannelMessage
from frameworks.core.devices import Device, ModelNeeds
from frameworks.core.timings import MAX_LINKS, BatchRun
from frameworks.engine.contract import EngineSettings
from frameworks.generation.sequences import StepStats
from frameworks.generation.types import TextDelta, Usage

MAX_PHASE_CHARACTERS = 100


class Free(ChannelMessage, frozen=True):
    """The blocks of the receiver's arena are read and can be leased again."""

    blocks: list[int]


class Measure(ChannelMessage, frozen=True):
    """Read the headers of the model's files. The first message; answered by Needs or LoadFailed.

    `entry` and `settings`: pickles of the pydantic models. The process trusts the server, and never the reverse.
    """

    framework: str
    entry: bytes
    path: str
    settings: bytes


class Load(ChannelMessage, frozen=True):
    """Load the model that was measured. Answered by Loaded or LoadFailed."""

    device: Device
    engine: EngineSettings


class Infer(ChannelMessage, frozen=True):
    """Run a request. Answered by Answer or Failed.

    `tenant`: name, weight, whether it shares caches. `is_metered`: the engine sends Counted, and waits for Proceed.
    `span`: a SpanRef of a sampled request; empty for the others.
    """

    id: int
    request: Any
    priority: int
    tenant: tuple[str, float, bool]
    arrived_s: float
    is_metered: bool = False
    span: bytes = b""


class Generate(ChannelMessage, frozen=True):
    """Generate texts. Answered by TextDeltas, the last of which is over, or by Failed.

    `left_s`: seconds to the deadline; None without one. `in_pieces`: deliver text as it is generated.
    """

    id: int
    request: Any
    priority: int
    tenant: tuple[str, float, bool]
    arrived_s: float
    left_s: float | None
    in_pieces: bool
    is_metered: bool = False


class Cancel(ChannelMessage, frozen=True):
    """End a request. It has no answer; one that was sent before is ignored."""

    id: int


class Proceed(ChannelMessage, frozen=True):
    """Run a metered request whose tokens were accepted."""

    id: int


class Ping(ChannelMessage, frozen=True):
    """Ask for a Pong of the same number."""

    number: int


class Waiting(ChannelMessage, frozen=True):
    """So many requests wait at the client until the engine accepts them."""

    calls: int


class EndRequests(ChannelMessage, frozen=True):
    """Fail all requests that have not been answered."""


class Close(ChannelMessage, frozen=True):
    """Unload the model and end. Answered by Closed."""


class ErrorState(Struct, frozen=True, array_like=True, gc=False):
    """An error: the name of its class, its messages, and the attributes that its class has.

    `public` None: as `message`.
    """

    name: str
    message: str
    field: str | None = None
    reason: str | None = None
    retry_after_s: float | None = None
    public: str | None = None


class Needs(ChannelMessage, frozen=True):
    """The needs of the model, estimated from its files."""

    needs: ModelNeeds


class Loaded(ChannelMessage, frozen=True):
    """The model is loaded and warm."""

    spec: Any
    memory_bytes: int
    load_s: float
    warm_up_s: float


class LoadProgress(ChannelMessage, frozen=True):
    """The phase of a load, or of the compilation after it, and how much of it is done, as in WorkState."""

    what: Annotated[str, Meta(max_length=MAX_PHASE_CHARACTERS)]
    done: int
    total: int
    unit: Annotated[str, Meta(max_length=MAX_PHASE_CHARACTERS)]


class LoadFailed(ChannelMessage, frozen=True):
    """The model cannot be loaded."""

    error: ErrorState


class Counted(ChannelMessage, frozen=True):
    """A metered request has so many tokens; it waits for Proceed or Cancel."""

    id: int
    tokens: int


class Begun(ChannelMessage, frozen=True):
    """The requests are part of a run that begins now."""

    ids: list[int]
    at_s: float


class Answer(ChannelMessage, frozen=True):
    """The answer to a request, its phases in seconds, and the rows of its batch. `runs`: batches of a sampled one."""

    id: int
    answer: Any
    queue_s: float
    compute_s: float
    decode_s: float = 0.0
    batch_rows: int = 0
    runs: Annotated[list[BatchRun], Meta(max_length=MAX_LINKS)] = field(default_factory=list)


class Failed(ChannelMessage, frozen=True):
    """A request ended with an error."""

    id: int
    error: ErrorState


class TextDeltas(ChannelMessage, frozen=True):
    """Further text of a generation.

    `first_s`: seconds to its first token, once. `token_s`: seconds between later tokens. `begun`: texts that began
    since the last message. `is_over`: every choice has ended.
    """

    id: int
    pieces: list[TextDelta]
    usage: Usage
    first_s: float | None = None
    token_s: list[float] = field(default_factory=list)
    begun: int = 0
    is_over: bool = False


class BatchDeltas(Struct, frozen=True, array_like=True, gc=False):
    """Growth of the BatchCounts since the last message, by number of rows and by tenant."""

    sizes: dict[int, int] = {}
    split: dict[int, int] = {}
    seconds: dict[int, float] = {}
    tenant_seconds: dict[str, float] = {}


class StepDeltas(Struct, frozen=True, array_like=True, gc=False):
    """Growth of the StepCounts since the last message. `tenants`: prompt and generated tokens by name."""

    tokens: int = 0
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    texts: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    steps: BatchDeltas = BatchDeltas()
    tenants: dict[str, tuple[int, int]] = {}


class Counts(ChannelMessage, frozen=True):
    """Growth of the engine's counts, its state after the last step, and its sequences by tenant; None where nothing has
    changed.
    """

    batches: BatchDeltas | None = None
    steps: StepDeltas | None = None
    stats: StepStats | None = None
    sequences: dict[str, tuple[int, int]] | None = None


class SpecLearned(ChannelMessage, frozen=True):
    """Requests have shown how their rows may share a batch: the spec from now on."""

    spec: Any


class Pong(ChannelMessage, frozen=True):
    """Answer to a Ping. `running_s`: of the longest run in progress; 0.0 when idle. `at_s`: when it was sent, by the
    clock of the engine's machine.
    """

    number: int
    running_s: float
    at_s: float = 0.0


class QueueState(ChannelMessage, frozen=True):
    """`call_s`: seconds of the device that a request takes, as learned. `others`: requests of other clients."""

    call_s: float
    others: int


class Leave(ChannelMessage, frozen=True):
    """The engine unloads the model for another one: the client sends no further requests, and Close after the last."""


class VersionReport(Struct, frozen=True, array_like=True, gc=False):
    """A version in a replica that models share. `path`: as the client has named it. `memory_bytes`: 0 while it is being
    loaded. `queued_s`: seconds that its requests will take there.
    """

    model: str
    version: str
    path: str
    memory_bytes: int
    queued_s: float


class ReplicaReport(ChannelMessage, frozen=True):
    """The versions in a replica that models share. `free_bytes`: of its budget. `evictions`: by model, since the last
    message; of several clients that follow the replica only one gets them.
    """

    versions: list[VersionReport]
    free_bytes: int
    queued_s: float
    evictions: dict[str, int] = field(default_factory=dict)


class Closed(ChannelMessage, frozen=True):
    """The model is unloaded; the process ends."""


ToEngine = Measure | Load | Infer | Generate | Cancel | Proceed | Free | Ping | Waiting | EndRequests | Close
FromEngine = (
    Needs
    | Loaded
    | LoadProgress
    | LoadFailed
    | Counted
    | Begun
    | Answer
    | Failed
    | TextDeltas
    | Free
    | Counts
    | SpecLearned
    | Pong
    | QueueState
    | Leave
    | ReplicaReport
    | Closed
)
