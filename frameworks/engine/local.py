"""Run a model in this process: each instance on a worker thread, behind one dispatcher."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, cast

from frameworks.core.errors import Draining, InvalidInput
from frameworks.engine.adapter_uses import AdapterUses
from frameworks.engine.contract import EngineRequest, EngineSettings, Run, RunCounts, TokenTimes
from frameworks.engine.generating.service import GenerationService
from frameworks.engine.images import ImageService
from frameworks.engine.seeing.image_pairs import score_images
from frameworks.engine.seeing.service import SeeingService
from frameworks.engine.speech.service import SpeechService
from frameworks.engine.tasks import TaskService
from frameworks.engine.texts import TextService
from frameworks.engine.threads import EngineThreads
from frameworks.generation.sequences import StepStats
from frameworks.generation.types import AdapterSpec, GenerateRequest, Generation
from frameworks.images.spec import ImageRequest
from frameworks.runtime import BatchModel, LoadedModel, StepModel
from frameworks.scheduling.batch.dispatcher import Dispatcher
from frameworks.scheduling.batch.request import Outputs
from frameworks.scheduling.batch.worker import BatchWorker
from frameworks.scheduling.device_clock import SharedDevice
from frameworks.scheduling.sequences.sequences import Sequences
from frameworks.scheduling.sequences.state_store import SequenceUse
from frameworks.scheduling.steps.dispatcher import StepDispatcher
from frameworks.scheduling.steps.worker import StepWorker
from frameworks.tasks.types import TaskRequest
from frameworks.text.tokens import TokenAnswer, TokenizeRequest, TokenRequest
from frameworks.types import Answer, ConversationRequest, ImagePairRequest, PairRequest, TextRequest, Value

Result = TypeVar("Result")


class LocalEngine:
    """Implement Engine. The first instance stands for what all instances share."""

    outage = None
    references = 0

    def __init__(
        self,
        model: BatchModel | StepModel,
        dispatcher: Dispatcher | StepDispatcher,
        settings: EngineSettings,
        threads: EngineThreads,
    ) -> None:
        self.model = model
        self._name = settings.name
        self.dispatcher = dispatcher
        # An attribute, as it is read several times for each request.
        self.is_dead = False
        dispatcher.on_death = self._note_death
        # The dispatcher's own function: a call in between would take its time for each request for tensors.
        self.submit = dispatcher.submit if isinstance(dispatcher, Dispatcher) else _refuse_rows
        self.compute_now = dispatcher.compute_now if isinstance(dispatcher, Dispatcher) else None
        self.steps: Sequences | None = None
        """The steps of the sequences of a model with a state."""
        if model.spec.state is not None and isinstance(dispatcher, Dispatcher):
            # Only the models of one framework have states.
            first_of: Callable[[int], dict[str, Value]] = getattr(model, "first_states")  # noqa: B009
            self.steps = Sequences(settings.name, model.spec, first_of, dispatcher.submit, settings.is_reloaded)
            self.submit, self.compute_now = self.steps.submit, None
        self._texts = TextService(model, self.submit, settings.takes_token_ids, threads.tokenizers)
        self._images = ImageService(model, self.submit, threads)
        self._tasks = TaskService(model, self.submit, threads)
        if model.spec.speech is not None:
            step_model, steps = cast("StepModel", model), cast("StepDispatcher", dispatcher)
            self._tasks = SpeechService(step_model, model.spec.speech, steps, threads)
        self._seeing: SeeingService | None = None
        prompts = getattr(model, "content_prompts", None)
        if prompts is not None:
            self._seeing = SeeingService(cast("BatchModel", model), prompts, self.submit, threads)
        self._adapter_uses = AdapterUses(settings.name)
        self._generation: GenerationService | None = None
        if isinstance(dispatcher, StepDispatcher) and model.spec.generation is not None:
            self._generation = GenerationService(cast("StepModel", model), dispatcher, settings.name, threads)

    @property
    def is_running(self) -> bool:
        return self.dispatcher.is_running

    @property
    def running_since_s(self) -> float | None:
        """When the longest batch or step that runs on a thread began (time.perf_counter); None while none runs."""
        return self.dispatcher.running_since_s

    @property
    def has_ended_requests(self) -> bool:
        return self.dispatcher.has_ended_requests

    @property
    def stats(self) -> list[StepStats]:
        return self.dispatcher.stats if isinstance(self.dispatcher, StepDispatcher) else []

    @property
    def sequences(self) -> SequenceUse:
        return {} if self.steps is None else self.steps.store.use

    def lease_body(self, nbytes: int) -> None:
        """Tensors in any memory of this process are not copied."""

    def answer(self, run: Run, request: EngineRequest) -> Awaitable[Answer | TokenAnswer]:
        if isinstance(request, TokenRequest):
            if self._generation is not None and isinstance(request, TokenizeRequest) and request.has_images:
                return self._generation.tokenize(run, request)
            return self._texts.answer_token_request(run, request)
        if isinstance(request, TextRequest):
            return (self._seeing or self._texts).answer(run, request)
        if isinstance(request, ImageRequest):
            return (self._seeing or self._images).answer(run, request)
        if isinstance(request, PairRequest):
            return (self._seeing or self._texts).score(run, request)
        if isinstance(request, ConversationRequest | ImagePairRequest):
            return self._answer_seen(run, request)
        if isinstance(request, TaskRequest):
            return self._tasks.answer(run, request)
        permit = run.permit
        return self.submit(request, run.priority, permit.begin, run.timings, permit.tenant)

    async def _answer_seen(self, run: Run, request: ConversationRequest | ImagePairRequest) -> Answer:
        if isinstance(request, ImagePairRequest):
            if self._seeing is None:
                return await score_images(run, request, self._texts, self._images)
            return await self._seeing.score_images(run, request)
        if self._seeing is None:
            raise InvalidInput("messages", "expected a model that embeds conversations, got another; send input")
        return await self._seeing.answer(run, request)

    async def generate(
        self, run: Run, request: GenerateRequest, times: TokenTimes, left_s: float | None, in_pieces: bool
    ) -> Generation:
        if self._generation is None:
            raise InvalidInput("prompt", "expected a model that generates text, got another one; name another model")
        assert self.model.spec.generation is not None
        if not request.adapter:
            return await self._generation.begin(run, request, times, left_s, in_pieces)
        use = self._adapter_uses.use(request.adapter, self.model.spec.generation)
        try:
            return await self._generation.begin(run, request, times, left_s, in_pieces, use)
        except BaseException:
            use.release()
            raise

    async def adapter_bytes(self, folder: Path) -> int:
        """Check an adapter, and return the bytes of its weights. Raises InvalidModel, InvalidInput."""
        return await _in_own_thread(self._step_model.adapter_bytes, folder)

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter while texts are generated. Raises InvalidModel, OutOfMemory, InvalidInput."""
        model = self._step_model
        added = await _in_own_thread(model.load_adapter, name, folder)
        model.list_adapters((*_adapters(model), added))

    async def unload_adapter(self, name: str) -> int:
        """Refuse new requests for an adapter, wait for those in progress, and release it. Return its bytes."""
        model = self._step_model
        removed = next((each for each in _adapters(model) if each.name == name), None)
        if removed is None:
            return 0
        model.list_adapters(tuple(each for each in _adapters(model) if each is not removed))
        await self._adapter_uses.drained(removed.number)
        await _in_own_thread(model.unload_adapter, removed.number)
        return removed.memory_bytes

    @property
    def _step_model(self) -> StepModel:
        if self._generation is None:
            raise InvalidInput("name", "expected an adapter of a model that generates text, got another model")
        return cast("StepModel", self.model)

    async def drained(self) -> None:
        """No other process uses the model."""

    async def close(self) -> None:
        await self.dispatcher.close()
        if self.steps is not None:
            self.steps.close(Draining.unloaded(self._name))

    def end_requests(self) -> None:
        if self.steps is not None:
            self.steps.close(Draining.unloaded(self._name))
        self.dispatcher.end_requests()

    def abort(self, message: str) -> None:
        if self.steps is not None:
            self.steps.close(Draining(message))
        self.dispatcher.abort(message)

    def check_integrity(self) -> None:
        if self.steps is not None:
            self.steps.check_integrity()
        if isinstance(self.dispatcher, StepDispatcher):
            self.dispatcher.check_integrity()

    def _note_death(self) -> None:
        self.is_dead = True


def _adapters(model: StepModel) -> tuple[AdapterSpec, ...]:
    assert model.spec.generation is not None
    return model.spec.generation.adapters


async def _in_own_thread(work: Callable[..., Result], *arguments: object) -> Result:
    """Run the work in a thread that ends with it, and with it the OpenMP threads, see Loader."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="adapter")
    try:
        return await asyncio.get_running_loop().run_in_executor(thread, work, *arguments)
    finally:
        thread.shutdown(wait=False)


def _refuse_rows(*_: object, **__: object) -> "asyncio.Future[Outputs]":
    raise InvalidInput("inputs", "expected a prompt for a model that generates text, got tensors; send a prompt")


def start_local_engine(
    settings: EngineSettings, instances: LoadedModel, counts: RunCounts, device: SharedDevice, threads: EngineThreads
) -> LocalEngine:
    """Start the workers of instances that are warmed up. Call it in the event loop.

    `counts`: batches and steps are added there. `device`: that of the instances, with the models that share it.
    """
    model, name = instances[0], settings.name
    dispatcher: Dispatcher | StepDispatcher
    if model.spec.decoder is not None:
        generating = cast("Sequence[StepModel]", instances)
        steps = [StepWorker(name, instance, counts.generated, device.clock) for instance in generating]
        dispatcher = StepDispatcher(name, steps)
    else:
        batches = [BatchWorker(name, instance) for instance in cast("Sequence[BatchModel]", instances)]
        dispatcher = Dispatcher(name, batches, model.spec, settings.limits, settings.ageing_s, counts.batches, device)
    return LocalEngine(model, dispatcher, settings, threads)
