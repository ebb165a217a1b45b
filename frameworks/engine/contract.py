"""Define the contract of an engine: where a loaded model runs. The pipeline and the model's versions know only this."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from frameworks.core.tenants import DEFAULT_TENANT, Tenant
from frameworks.core.timings import Timings
from frameworks.generation.sequences import StepStats
from frameworks.generation.types import GenerateRequest, Generation
from frameworks.images.spec import ImageRequest
from frameworks.scheduling.admission import Permit
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.scheduling.batch.request import BatchCounts, Outputs
from frameworks.scheduling.sequences.state_store import SequenceUse
from frameworks.scheduling.steps.counts import StepCounts
from frameworks.tasks.types import TaskRequest
from frameworks.text.tokens import TokenAnswer, TokenRequest
from frameworks.types import (
    DEFAULT_PRIORITY,
    Answer,
    Array,
    ConversationRequest,
    ImagePairRequest,
    ModelSpec,
    PairRequest,
    SentBatch,
    TensorBatch,
    TextRequest,
)

EngineRequest = (
    TensorBatch
    | TextRequest
    | ImageRequest
    | ConversationRequest
    | PairRequest
    | ImagePairRequest
    | TaskRequest
    | TokenRequest
)
"""A request with one answer."""
ComputeNow = Callable[[TensorBatch, Timings, Tenant], Outputs | None]
"""As Engine.compute_now; the tenant is charged for the rows, and the times are recorded in the timings."""


class Run:
    """The state of a run of a decoded request, which adds its times to `timings`. `priority`: 1 is first."""

    __slots__ = ("permit", "priority", "timings")

    def __init__(self, permit: Permit, timings: Timings, priority: int = DEFAULT_PRIORITY) -> None:
        """The permit holds a reference to the model, and its queue slots."""
        self.permit = permit
        self.timings = timings
        self.priority = priority


@dataclass(frozen=True, slots=True)
class RunCounts:
    """The batches of one version over all its loads, or the steps of a generating one.

    `restarts`: losses of its process by reason, such as `sigsegv` or `hang`.
    """

    batches: BatchCounts = field(default_factory=BatchCounts)
    generated: StepCounts = field(default_factory=StepCounts)
    restarts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the requests of one model are scheduled. `ageing_s`: a waiting request gains a priority level after so many
    seconds. `takes_token_ids`: texts may be sent as token ids. `max_batch_seconds`: limit of one batch or step, for an
    engine process; None: no limit. `is_reloaded`: an earlier engine of the model may have had sequences.
    """

    name: str
    limits: BatchLimits
    ageing_s: float
    takes_token_ids: bool = False
    max_batch_seconds: float | None = None
    is_reloaded: bool = False


class TokenTimes(Protocol):
    """Where the times of a model's generated tokens are recorded, in seconds."""

    def observe_first(self, seconds: float) -> None:
        """From the first byte of a request to its first token."""
        ...

    def observe_next(self, seconds: float) -> None:
        """Between two tokens of one text."""
        ...


class Described(Protocol):
    """The description of a loaded model, wherever it runs."""

    @property
    def spec(self) -> ModelSpec:
        """Another object when requests have shown how their rows may share a batch."""
        ...


class Engine(Protocol):
    """One loaded version of a model: it queues requests, forms batches or steps, and computes them.

    Owned by the event loop. All methods may be called until `close` or `abort`.
    """

    @property
    def model(self) -> Described: ...

    @property
    def is_dead(self) -> bool:
        """Whether it will never answer again. Read several times for each request."""
        ...

    @property
    def outage(self) -> str | None:
        """Why it cannot answer now, although it will again; None while it can."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether it computes, even if all callers were cancelled."""
        ...

    @property
    def references(self) -> int:
        """The number of requests of other processes that hold a reference to the model."""
        ...

    @property
    def has_ended_requests(self) -> bool:
        """Whether `end_requests` was called; further requests are refused."""
        ...

    @property
    def stats(self) -> list[StepStats]:
        """The stats of each instance of a generating model; empty for other models."""
        ...

    @property
    def sequences(self) -> SequenceUse:
        """The sequences of a model with a state, by tenant; empty for other models."""
        ...

    def lease_body(self, nbytes: int) -> Array | None:
        """Return memory for the body of a request, uint8 [nbytes], writable; None where other memory serves as well.

        Tensors that are views of it are sent to the model's process without a copy. It is free with the last view.
        """
        ...

    def submit(
        self,
        batch: SentBatch,
        priority: int = DEFAULT_PRIORITY,
        begin: Callable[[], None] = ...,
        timings: Timings | None = None,
        tenant: Tenant = DEFAULT_TENANT,
    ) -> Awaitable[Outputs]:
        """Queue the rows of a request and return the awaitable of its outputs.

        `begin` is called when a part of it begins to run, perhaps again later. `tenant`: is charged for the rows. If
        the awaitable is cancelled, parts that have not begun never run. Raises InvalidInput, OutOfMemory, ModelFailed,
        Draining.
        """
        ...

    @property
    def compute_now(self) -> ComputeNow | None:
        """Run tensors at once, without a queue slot, and return the outputs.

        It returns None where the tensors have to be queued by `submit`, as other requests wait or the run takes long.
        Raises the error of the model. None: all requests have to be queued.
        """
        ...

    def answer(self, run: Run, request: EngineRequest) -> Awaitable[Answer | TokenAnswer]:
        """Answer a request for tensors, texts, images, pairs of texts or tokens. As `submit` for the run's permit.

        Raises also QuotaExceeded where the tenant has no tokens left.
        """
        ...

    async def generate(
        self, run: Run, request: GenerateRequest, times: TokenTimes, left_s: float | None, in_pieces: bool
    ) -> Generation:
        """Begin to generate text; return when the prompts are tokenized.

        `times`: where the times of tokens are recorded. `left_s`: seconds until the deadline. `in_pieces`: the
        generation will be iterated, so each piece is delivered at once. The caller closes the generation. Raises
        InvalidInput, DeadlineExceeded, and as `answer`.
        """
        ...

    async def drained(self) -> None:
        """Wait until no other process uses the model. They use it again if the wait is cancelled."""
        ...

    async def close(self) -> None:
        """End after the requests that it has, and release the model."""
        ...

    def end_requests(self) -> None:
        """Fail all queued requests and generations with Draining, and all later ones. Batches that run are answered."""
        ...

    def abort(self, message: str) -> None:
        """Fail all requests with Draining, without waiting for those that run."""
        ...

    def check_integrity(self) -> None:
        """Raise AssertionError where an idle model holds sequences or memory of requests."""
        ...
