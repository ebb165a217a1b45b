"""The state of one request, the version that answers it, and its run on that version."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import numpy as np

from app.auth.quotas import TenantLimits
from app.inference.contract import NamedRequest, TextStream
from app.inference.model_view import ModelView
from app.inference.predictions import has_long_answers, predict_each
from app.inference.response_cache import CacheableRequest, Responses
from app.observability.metrics import RequestRecord
from frameworks.core.errors import AdapterNotFound
from frameworks.engine.contract import Run, TokenTimes
from frameworks.engine.generation_limits import check_request
from frameworks.generation.types import GenerateRequest, Generation
from frameworks.models.versions.contract import ServedModels
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.version import ModelVersion, VersionNotLoaded
from frameworks.tasks.types import TaskRequest
from frameworks.text.tokens import TokenAnswer, TokenRequest
from frameworks.types import Answer, Array, ModelSpec, TensorBatch

ADAPTER_MARK = ":"
"""Between the name of a model and that of its adapter. No name of a model contains it."""


class RunContext(Run):
    """A run and the version that answers it; the permit holds a reference to that version."""

    __slots__ = ("model_version",)

    model_version: ModelVersion


class RequestContext(RequestRecord, RunContext, ABC):
    """One inference request, from its first byte to its response: its record, its run, its route and its transport.

    Each transport has a subclass. `Pipeline.admit` sets `permit` and `served_models`. The version is chosen between
    the two steps of decoding.
    """

    served_models: ServedModels
    slot: ModelSlot | None = None
    """The model that was found last, under the name `answered_name`."""
    is_routed = False
    """Whether `model_version` is chosen."""
    not_loaded: ModelVersion | None = None
    """The version whose load the request has to wait for."""
    load_timeout_ms: float | None = None
    """The deadline that the request names, if its version has to be loaded first."""
    shadowed: ModelSlot | None = None
    """The model, if the response to this request is compared with that of a shadow version."""

    read: Callable[[], NamedRequest]
    """Parse the body as far as the names; any thread may call it. Raises InvalidJson, InvalidInput and UnknownField.

    Deleted when the request is decoded: the body may be large, and the request may wait long.
    """
    is_long_to_decode = False
    """Whether decoding would block the event loop for about a millisecond."""
    keeps_body = False
    """Whether the bytes of the body are kept after decoding."""
    is_long_to_encode: Callable[[Any, Any], bool]
    """Whether encoding this answer to the decoded request would block the event loop for about a millisecond."""
    is_watched = False
    """Set while the current task may be cancelled: a client that disconnects then cancels it."""
    watching: object | None = None
    """It tells of the disconnect; None: the request is young."""

    def set_limits(self, limits: TenantLimits) -> None:
        """Note the limits of the request's tenant."""
        self.limits = limits

    @abstractmethod
    def encode(self, decoded: Any, answer: Any) -> Any:
        """Encode the response. Any thread may call it."""

    @abstractmethod
    def open_stream(self, decoded: Any) -> TextStream | None:
        """Return a stream if the response is sent in pieces."""

    async def end_watch(self) -> None:
        """End `watching`. Raises ClientGone if the client has disconnected."""

    @property
    def models(self) -> ModelView:
        """The models that the sender of the request may use."""
        return ModelView(self.served_models, self.principal)

    def check_available(self, name: str, version: str | None) -> None:
        """Raise what keeps the model from answering, before the body is read.

        The version is not chosen yet: another one may serve when the body has arrived.
        """
        slot = self._find_slot(name)
        if version is not None:
            chosen = slot.version_named(version)
        else:
            chosen = slot.active if slot.serves_latest else slot.default_version
        try:
            chosen.spec_for(self.permit)
        except VersionNotLoaded:
            return
        if not chosen.model.entry.cache:
            self.permit.check_room(chosen.model.requests)

    def route(self, named: NamedRequest) -> ModelSpec:
        """Choose the version that answers and return its spec. Called before the body's data are decoded.

        Raises what keeps the version from answering; VersionNotLoaded if the request has to wait for a load;
        InvalidInput if it names no model and several models could answer.
        """
        if self.is_routed:
            chosen = self.model_version
        else:
            name, version = named.model, named.version
            assert name is not None
            if not isinstance(name, str):
                name = name.name_in(self.models.slots)
            slot, slots = self.slot, self.served_models.slots_by_name
            # Found already where the path names the model, unless it was removed meanwhile.
            if slot is None or name != self.answered_name or slots.get(slot.name) is not slot:
                slot = self._find_slot(name)
            if version is not None:
                chosen = slot.version_named(version)
            elif slot.canary is None and slot.serves_latest:
                chosen = slot.active  # as slot.route() does, for the usual model
            else:
                chosen = slot.route()
            self.model_version = chosen
            self.is_routed = True
            self.version = chosen.version
            if slot.shadow is not None:
                self.shadowed = slot if version is None and chosen is slot.active else None
        try:
            spec = chosen.spec_for(self.permit)
        except VersionNotLoaded:
            self.not_loaded = chosen
            self.load_timeout_ms = named.read_timeout_ms()
            raise
        if self.adapter:
            check_adapter(chosen.model.name, self.adapter, spec)
        if not chosen.model.entry.cache:
            # A cached response is sent even if the queue is full.
            self.permit.check_room(chosen.model.requests)
        return spec

    def lease_body(self, name: str, version: str | None, nbytes: int) -> Array:
        """Return memory for the body of a request, uint8 [nbytes]. Call it after `check_available`.

        The version is not chosen yet: another one gets copies of the tensors, if its process has other memory.
        """
        slot = self.served_models.slots_by_name.get(name.partition(ADAPTER_MARK)[0])
        if slot is not None:  # else it was removed meanwhile
            chosen = slot.default_version if version is None else slot.version_named(version)
            leased = chosen.lease_body(nbytes)
            if leased is not None:
                return leased
        return np.empty(nbytes, np.uint8)

    def check_queue_of(self, name: str) -> None:
        """Raise Overloaded if a model has no room; does nothing for an unknown name."""
        slot = self.models.get(name.partition(ADAPTER_MARK)[0])
        if slot is not None:
            slot.requests.check_room()

    def reroute(self) -> None:
        """Route the request again: the version that was chosen no longer answers."""
        self.permit.release_version()
        self.is_routed = False

    def reroute_unless_held(self, version: ModelVersion) -> None:
        """After waiting for a load: route the request again, unless this version has waited for it."""
        self.is_routed = version.is_held_by(self.permit)
        if self.is_routed:
            self.model_version = version

    def _find_slot(self, name: str) -> ModelSlot:
        """Return a model, and note it on the record with its alias and its adapter. Raises ModelNotFound."""
        self.answered_name, adapter = name, ""
        if ADAPTER_MARK in name:
            base, _, adapter = name.partition(ADAPTER_MARK)
            name = base if adapter else name  # without the name of an adapter, it names no model
        principal = self.principal
        slot = self.served_models.slots_by_name.get(name)
        if slot is None or not (principal.sees_all or principal.may_use(slot.name)):
            slot = self.models.slot(name)
        self.model, self.version, self.adapter = slot.name, slot.active.version, adapter
        self.alias = "" if name == slot.name else name
        self.slot = slot
        return slot


def check_adapter(model: str, adapter: str, spec: ModelSpec) -> None:
    """Raise AdapterNotFound if the loaded model has no adapter of this name."""
    names = [each.name for each in spec.generation.adapters] if spec.generation is not None else []
    if adapter not in names:
        raise AdapterNotFound(model, adapter, names)


class InferenceService:
    """Answer decoded requests. The caller holds the server's permit; the model's place is taken here."""

    def __init__(self, response_cache: Responses, token_times: Callable[[str, str], TokenTimes]) -> None:
        """`token_times(model, tenant)`: where the times of a model's tokens are recorded for a tenant."""
        self._response_cache = response_cache
        self._token_times = token_times

    def infer(self, context: RunContext, request: CacheableRequest | TokenRequest) -> Awaitable[Answer | TokenAnswer]:
        """Run a request on the context's version. The permit holds a reference to that version.

        A request whose response is cached never waits. If the awaitable is cancelled, what has not begun never runs.
        Raises Overloaded and the other ModelUnavailable errors, InvalidInput, OutOfMemory.
        """
        version, timings = context.model_version, context.timings
        is_cached = version.model.entry.cache
        if type(request) is TensorBatch and not is_cached and not version.model.is_composite:
            permit = context.permit
            permit.queue(version.model.requests)
            return version.engine().submit(request, context.priority, permit.begin, timings, permit.tenant)
        if not is_cached or isinstance(request, TokenRequest):
            return self._run(context, request)
        version.touch()
        timings.cache_hit = True

        def run() -> Awaitable[Answer]:
            timings.cache_hit = False
            return cast("Awaitable[Answer]", self._run(context, request))

        permit = context.permit
        return self._response_cache.get_or_run(
            permit.tenant, version.model.name, version.serving_id, request, run, permit.begin
        )

    async def generate(
        self, context: RunContext, request: GenerateRequest, left_s: float | None = None, in_pieces: bool = True
    ) -> Generation:
        """Begin to generate text. Generated text is not cached.

        Returns when the prompts are tokenized. The caller iterates or collects the generation, and closes it in
        any case; the context's timings are complete when it has ended. `left_s`: seconds until the deadline, at
        which running sequences end too. `in_pieces`: the generation will be iterated, so each piece is delivered at
        once. Raises InvalidInput, DeadlineExceeded, Overloaded and the other ModelUnavailable errors.
        """
        check_request(request)
        version, permit = context.model_version, context.permit
        permit.queue_sequences(version.model.requests, len(request.prompts) * request.num_choices)
        times = self._token_times(version.model.name, permit.tenant.name)
        return await version.engine().generate(context, request, times, left_s, in_pieces)

    def _run(self, context: RunContext, request: CacheableRequest | TokenRequest) -> Awaitable[Answer | TokenAnswer]:
        version = context.model_version
        context.permit.queue(version.model.requests)
        if type(request) is TaskRequest and len(request.inputs) > 1 and has_long_answers(version.spec):
            return predict_each(partial(version.engine().answer, context), request)
        return version.engine().answer(context, request)
