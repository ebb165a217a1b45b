"""Prepare conversations with images off the event loop, within a bound of the bytes that they hold."""

import time

from frameworks.core.errors import InvalidInput
from frameworks.core.text_lengths import TextLimit
from frameworks.core.timings import Timings
from frameworks.engine.threads import EngineThreads, ImageMemoryLimit
from frameworks.generation.media import PromptMedia
from frameworks.generation.types import Conversation, GenerateRequest
from frameworks.runtime import StepModel


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
        """Return the token ids of a conversation with images, and its images. `max_tokens`: of the prompt.

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
        await held.hold(len(images) * max(self._image_bytes, file_bytes), timings)
        ids, media = await self._threads.run_task(None, self._prompts.encode, conversation, limit, max_tokens)
        self._image_bytes = max(self._image_bytes, media.nbytes // len(images))
        return tuple(ids), media


def conversation_with_images(request: GenerateRequest) -> Conversation | None:
    """Return the only prompt of a request where it is a conversation with images."""
    prompt = request.prompts[0]
    return prompt if isinstance(prompt, Conversation) and prompt.images else None
