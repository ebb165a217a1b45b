"""Images of requests: files to rows of a model and its answer; images of conversations, within a bound of bytes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from frameworks.core.errors import InvalidInput, ModelFailed
from frameworks.core.tenants import Tenant
from frameworks.core.text_lengths import TextLimit
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run
from frameworks.engine.text_answers import ranked
from frameworks.engine.threads import EngineThreads, ImageMemoryLimit
from frameworks.generation.media import PromptMedia
from frameworks.generation.types import Conversation
from frameworks.images.spec import ImageRequest, ImageSpec
from frameworks.runtime import BatchModel, StepModel
from frameworks.scheduling.batch.request import Outputs
from frameworks.text.pooling import normalize_rows, scores
from frameworks.types import Answer, Array, ClassifyAnswer, EmbedAnswer, ModelSpec, Task, TensorBatch

Submit = Callable[[TensorBatch, int, Callable[[], None], Timings, Tenant], Awaitable[Outputs]]

_NO_ROWS = np.empty((0, 0), dtype=np.float32)


class ImageService:
    """Answer the image requests of one model. Owned by the event loop.

    Adds to the timings of the run; raises as Engine.answer.
    """

    def __init__(self, model: BatchModel | StepModel, submit: Submit, threads: EngineThreads) -> None:
        """`submit`: queues tensors, as Dispatcher.submit. `threads`: prepare images, and compute long responses."""
        self._model = model
        self._submit = submit
        self._threads = threads

    async def answer(self, run: Run, request: ImageRequest) -> Answer:
        """Embed or classify images, or return the outputs of a model of task `tensor`.

        Raises InvalidInput; its field is `image`, or `image[2]` for one of the files.
        """
        spec = self._model.spec
        image, processor = spec.image, getattr(self._model, "image_processor", None)
        if image is None or processor is None:
            reads = "text" if spec.text is not None or spec.generation is not None else "tensors"
            raise InvalidInput("image", f"expected a model that reads images, got one that reads {reads}; send {reads}")
        if not request.images:
            return _answer_to_none(spec)
        names = (image.output_name,) if image.output_name else request.output_names
        timings, threads = run.timings, self._threads.images
        nbytes = len(request.images) * processor.row_bytes
        if not threads.memory.try_hold(nbytes):
            arrived_s = time.perf_counter()
            await threads.memory.hold(nbytes)
            timings.queued(arrived_s, time.perf_counter())
        try:
            begun_s = time.perf_counter()
            try:
                rows = await threads.prepare(processor, request.images)
            finally:
                timings.decoded(begun_s, time.perf_counter())
            outputs = await self._run_rows(run, spec, image.input_name, rows, names)
        finally:
            threads.memory.release(nbytes)
        if not image.output_name:
            return outputs
        output = outputs[image.output_name]
        assert isinstance(output, np.ndarray)
        return await self._threads.tokenizers.compute(output.size, _finished, spec.task, image, request, output)

    def _run_rows(
        self, run: Run, spec: ModelSpec, input_name: str, rows: Array, names: tuple[str, ...] | None
    ) -> Awaitable[Outputs]:
        """Run the rows: together, or each for itself where the model takes one at a time."""
        permit = run.permit
        if len(rows) > 1:
            shape = spec.inputs_by_name[input_name].shape
            if shape is not None and shape[0] == 1:
                return self._run_each(run, input_name, rows, names)
        batch = TensorBatch({input_name: rows}, names)
        return self._submit(batch, run.priority, permit.begin, run.timings, permit.tenant)

    async def _run_each(self, run: Run, input_name: str, rows: Array, names: tuple[str, ...] | None) -> Outputs:
        """Run each row for itself. Returns the outputs of all rows."""
        permit = run.permit
        batches = [TensorBatch({input_name: rows[at : at + 1]}, names) for at in range(len(rows))]
        results = await asyncio.gather(
            *(self._submit(each, run.priority, permit.begin, run.timings, permit.tenant) for each in batches)
        )
        return {name: np.concatenate([np.asarray(each[name]) for each in results]) for name in results[0]}


def _answer_to_none(spec: ModelSpec) -> Answer:
    """Return the answer to a request without images."""
    if spec.task == "classify":
        return ClassifyAnswer([])
    if spec.task == "embed":
        return EmbedAnswer(_NO_ROWS, tokens=0)
    raise InvalidInput("image", "expected at least one image, got an empty list; send one")


def _finished(task: Task, image: ImageSpec, request: ImageRequest, output: Array) -> EmbedAnswer | ClassifyAnswer:
    """Compute the answer from the model's output: [images, size or labels], or hidden states [images, …, size]."""
    rows = output[:, 0] if image.pooling == "cls" else output
    rows = rows.reshape(len(rows), -1)
    if task == "embed":
        normalize = image.normalize if request.normalize is None else request.normalize
        embeddings = rows[:, : request.dimensions].astype(np.float32, copy=False)
        return EmbedAnswer(normalize_rows(embeddings) if normalize else embeddings, tokens=0)
    if rows.shape[1] != len(image.labels):
        raise ModelFailed(
            f"expected one number for each of {len(image.labels)} labels, got {rows.shape[1]} from the model; "
            "correct its labels and load it again"
        )
    plain = request.raw_scores or image.gives_probabilities
    values = rows.astype(np.float64) if plain else scores(rows, image.multi_label)
    return ranked(values, image.labels, request.top_k)


class HeldImages:
    """The bytes of one request's images, from before they are decoded until its texts have ended."""

    __slots__ = ("_held_bytes", "_memory")

    def __init__(self, memory: ImageMemoryLimit) -> None:
        self._memory = memory
        self._held_bytes = 0

    async def hold(self, nbytes: int, timings: Timings) -> None:
        """Wait until the bytes are available, and hold them."""
        if not self._memory.try_hold(nbytes):
            arrived_s = time.perf_counter()
            await self._memory.hold(nbytes)
            timings.queued(arrived_s, time.perf_counter())
        self._held_bytes = nbytes

    def shrink(self, nbytes: int) -> None:
        """Release what the images did not take."""
        if nbytes < self._held_bytes:
            self._memory.release(self._held_bytes - nbytes)
            self._held_bytes = nbytes

    def release(self) -> None:
        """Release the bytes. Harmless when repeated."""
        if self._held_bytes:
            self._memory.release(self._held_bytes)
            self._held_bytes = 0


class ConversationImages:
    """The images of one model's conversations. Owned by the event loop."""

    def __init__(self, model: StepModel, threads: EngineThreads) -> None:
        self._prompts = getattr(model, "image_prompts", None)
        self._threads = threads
        # Of the images so far: what the next ones will take, at least as much as their files.
        self._image_bytes = 1

    def held(self) -> HeldImages:
        """Return the hold of a new request, of no bytes yet."""
        return HeldImages(self._threads.conversation_images)

    async def prepare(
        self, conversation: Conversation, limit: TextLimit, max_tokens: int, held: HeldImages, timings: Timings
    ) -> tuple[tuple[int, ...], PromptMedia]:
        """Return the token ids of a conversation with images or videos, and its files. `max_tokens`: of the prompt.

        Raises InvalidInput.
        """
        images = conversation.images
        if self._prompts is None:
            raise InvalidInput(
                images[0].field, "expected only texts, as the model reads no images, got one; name a model that does"
            )
        # Before anything is held: their headers are read in microseconds.
        self._prompts.check(images)
        file_bytes = max(len(each.data) for each in images)
        expected_bytes = len(images) * max(self._image_bytes, file_bytes)
        selections: Sequence[Any] = ()
        if any(each.is_video for each in images):
            selections = await self._threads.run_task(None, self._prompts.select, conversation)
            expected_bytes += sum(each.nbytes for each in selections)
        await held.hold(expected_bytes, timings)
        ids, media = await self._threads.run_task(
            None, self._prompts.encode, conversation, limit, max_tokens, selections
        )
        if not selections:
            self._image_bytes = max(self._image_bytes, media.nbytes // len(images))
        held.shrink(media.nbytes)
        return tuple(ids), media
