"""Run requests to models as parts of another request: the steps of a pipeline, the query of a search."""

from collections.abc import Callable

import structlog

from frameworks.core.errors import (
    DeadlineExceeded,
    Draining,
    FieldError,
    InvalidInput,
    ModelFailed,
    ModelLoading,
    ModelNotFound,
    ModelUnloaded,
    OutOfMemory,
    Overloaded,
    RoundhouseError,
)
from frameworks.core.timings import Timings
from frameworks.engine.contract import EngineRequest, Run
from frameworks.models.versions.contract import ServedModels
from frameworks.models.versions.version import ModelVersion, VersionNotLoaded
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.batch.request import Outputs
from frameworks.text.tokens import TokenAnswer
from frameworks.types import Answer, ModelSpec, TensorBatch

log = structlog.get_logger(__name__)

MakeRequest = Callable[[ModelSpec], EngineRequest]
"""Return the request to a model with this spec. Raises RoundhouseError where the model cannot answer it."""
MakeTensors = Callable[[ModelSpec], TensorBatch]
"""As MakeRequest, for a model of tensors."""


class SubPermit(Permit):
    """The place of a sub-request at its model. It takes the tokens of the tenant of the whole request."""

    __slots__ = ("token_budget",)

    def __init__(self, limit: RequestLimit, whole: Permit) -> None:
        """`whole`: of the request that this one is a part of. Raises Overloaded."""
        Permit.__init__(self, limit, whole.tenant)
        self.token_budget = whole.token_budget


class SubRequests:
    """Send the parts of a request to models, each through the queue of its model. Owned by the event loop.

    A part shares batches with the requests of clients. It takes no place of the whole request at the server, and has
    the tenant and the priority of the whole request. The deadline of the whole request cancels its parts.
    """

    def __init__(self, models: ServedModels, max_queue_size: int | None = None) -> None:
        """`max_queue_size`: maximum parts of all requests that wait, in addition to the bounds of their models."""
        self._models = models
        self._limit = RequestLimit("the steps of requests", max_queue_size, None)

    def compute_now(self, whole: Run, name: str, make: MakeTensors, step: str) -> Outputs | None:
        """Run tensors at once, if the run is light and nothing else uses the model; None: send them by `answer`.

        Such a run ends before this returns: it needs no place in a queue and no reference to the model. Times are added
        to those of the whole request. Errors as of `answer`.
        """
        slot = self._models.slots_by_name.get(name)
        if slot is None or slot.canary is not None:
            return None
        version, limit = slot.active, slot.requests
        spec = version.spec
        if spec is None or not version.is_ready:
            return None
        if limit.own_waiting or limit.own_inflight >= limit.own_concurrency_bound:
            return None
        compute = version.engine().compute_now
        if compute is None:
            return None
        whole.permit.begin()
        try:
            return compute(make(spec), whole.timings, whole.permit.tenant)
        except RoundhouseError as error:
            raise self.named(error, name, step) from error

    async def answer(
        self, whole: Run, name: str, make: MakeRequest, step: str, timings: Timings | None = None
    ) -> Answer | TokenAnswer:
        """Answer the request that `make` returns for the spec of a model. It waits for a load of the model.

        `whole`: the run of the whole request, which counts as running with its first part. `step`: names the part in
        messages, such as `step "embed"`. `timings`: where the times of the part are recorded. If this is cancelled,
        batches that have not begun never run.

        Raises what `make` raises, and the errors of the model without its name: the sender may not know the model.
        """
        try:
            permit = SubPermit(self._limit, whole.permit)
            try:
                slot = self._models.slots_by_name.get(name) or self._models.slot(name)
                version = slot.route()
                spec = version.spec
                if spec is None or not version.acquire(permit, spec):
                    version, spec = await self._acquire(name, permit, version)
                request = make(spec)
                permit.queue(version.model.requests)
                whole.permit.begin()
                timings = timings or Timings()
                if type(request) is TensorBatch and not version.model.is_composite:
                    # As Engine.answer, without two calls and an object for each part.
                    return await version.engine().submit(request, whole.priority, permit.begin, timings, permit.tenant)
                return await version.engine().answer(Run(permit, timings, whole.priority), request)
            finally:
                permit.release()
        except RoundhouseError as error:
            raise self.named(error, name, step) from error

    async def spec(self, name: str, step: str) -> ModelSpec:
        """Return the spec of a model; load it first. As `answer`, for no request."""
        permit = Permit(self._limit)
        try:
            _, spec = await self._acquire(name, permit)
            return spec
        except RoundhouseError as error:
            raise self.named(error, name, step) from error
        finally:
            permit.release()

    async def _acquire(
        self, name: str, permit: Permit, version: ModelVersion | None = None
    ) -> tuple[ModelVersion, ModelSpec]:
        """Return the version that answers the next request, with a reference, and its spec. Waits for its load.

        `version`: the routed one; None: route the request.
        """
        while True:
            if version is None:
                version = self._models.slot(name).route()
            try:
                spec = version.spec_for(permit)
            except VersionNotLoaded:
                permit.queue(version.model.requests)
                await self._models.wait_for(version, permit)
                if not version.is_held_by(permit):
                    version = None
                continue
            except ModelUnloaded:
                if self._models.slot(name).default_version is version:
                    raise
                version = None
                continue
            if version.acquire(permit, spec):
                return version, spec
            permit.release_version()
            version = None

    def named(self, error: RoundhouseError, name: str, step: str) -> RoundhouseError:
        """Return the error of a model for the sender of the whole request: with the step, without the model."""
        slot = self._models.slots_by_name.get(name)
        return _named(error, (name,) if slot is None else (slot.name, name), step)


_REASONS: dict[type[RoundhouseError], tuple[type[RoundhouseError], str]] = {
    ModelUnloaded: (ModelUnloaded, "its model was unloaded; ask an operator to load it"),
    ModelLoading: (ModelLoading, "its model is being loaded; try again later"),
    Draining: (Draining, "its model was unloaded before it answered; send the request again"),
    ModelFailed: (ModelFailed, "its model failed; the log of the server has the reason"),
    ModelNotFound: (ModelFailed, "its model is not registered any more; ask an operator to register it"),
    DeadlineExceeded: (DeadlineExceeded, "its model did not answer in time; allow more time"),
    OutOfMemory: (OutOfMemory, "its model or the batch does not fit in memory; ask for less at once"),
}
"""The class of an error of a part → the class and the reason of the error of the whole request."""


def _named(error: RoundhouseError, names: tuple[str, ...], step: str) -> RoundhouseError:
    """Return the error of a part for the sender of the whole request: with the step, without the model.

    `names`: of the model, by which the step or the model itself calls it.
    """
    if isinstance(error, FieldError):
        return InvalidInput(error.field, f"{_without(error.reason, names)} ({step})")
    if isinstance(error, Overloaded):
        return Overloaded(f"{step}: too many requests wait for its model; try again later", error.retry_after_s)
    log.warning("a part of a request failed", step=step, model=names[0], reason=error.message)
    for kind, (answered, reason) in _REASONS.items():
        if isinstance(error, kind):
            named = answered(f"{step}: {reason}")
            if isinstance(named, ModelFailed) and isinstance(error, ModelFailed):
                named.retry_after_s = error.retry_after_s
            return named
    error.rewrite(lambda message: f"{step}: {_without(message, names)}")
    return error


def _without(message: str, names: tuple[str, ...]) -> str:
    """Return a message without the names of a model, which messages have in quotation marks."""
    for name in names:
        message = message.replace(f'"{name}"', "of the step")
    return message
