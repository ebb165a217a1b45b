"""An engine whose model reads images, and the bytes that its requests hold."""

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from frameworks.core.text_lengths import TextLimit
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run, RunCounts
from frameworks.engine.local import LocalEngine, start_local_engine
from frameworks.engine.threads import EngineThreads, ImageMemoryLimit
from frameworks.generation.media import ImageGroup, PromptMedia
from frameworks.generation.types import Conversation, GenerateRequest, Message, MessageImage, Stopping
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.device_clock import SharedDevice
from tests.frameworks.engine.process.test_same_answers import Times
from tests.support.engine_hosts import SETTINGS
from tests.support.step_models import EchoModel

MAX_BYTES = 1000
TENSOR_BYTES = 60
"""Of the tensors that ImagePrompts makes of an image."""


class ImagePrompts:
    """The images of an EchoModel: each is one token. `behaviour` is called on the thread that prepares them."""

    def __init__(
        self, behaviour: Callable[[Conversation], None] | None = None, tensor_bytes: int = TENSOR_BYTES
    ) -> None:
        self._tensor_bytes = tensor_bytes
        self.behaviour = behaviour
        self.refusal: Exception | None = None
        self.threads: list[str] = []
        self.limits: list[tuple[TextLimit, int]] = []
        self.checked: list[tuple[MessageImage, ...]] = []

    def check(self, images: Sequence[MessageImage]) -> None:
        self.checked.append(tuple(images))
        if self.refusal is not None:
            raise self.refusal

    def select(self, conversation: Conversation) -> list[Any]:
        """Return a selection of as many bytes as its file for each video."""
        return [SimpleNamespace(nbytes=len(each.data)) for each in conversation.images if each.is_video]

    def encode(
        self, conversation: Conversation, limit: TextLimit, max_tokens: int, selections: Sequence[Any]
    ) -> tuple[list[int], PromptMedia]:
        assert len(selections) == sum(each.is_video for each in conversation.images)
        self.threads.append(threading.current_thread().name)
        self.limits.append((limit, max_tokens))
        if self.behaviour is not None:
            self.behaviour(conversation)
        images = conversation.images
        ids = [255] * len(images) + list("".join(each.content for each in conversation.messages).encode())
        pixels = {"pixels": np.zeros(self._tensor_bytes, np.uint8)}
        groups = tuple(ImageGroup(-2 - i, pixels, ((i, i + 1),)) for i in range(len(images)))
        return ids, PromptMedia(len(ids), groups, {})


class CountedLimit(ImageMemoryLimit):
    """Note the bytes of each hold that is granted, and of each release."""

    def __init__(self) -> None:
        super().__init__(MAX_BYTES)
        self.holds: list[int] = []
        self.releases: list[int] = []

    def try_hold(self, nbytes: int) -> bool:
        is_held = super().try_hold(nbytes)
        if is_held:
            self.holds.append(nbytes)
        return is_held

    async def hold(self, nbytes: int) -> None:
        if not self.try_hold(nbytes):
            await super().hold(nbytes)
            self.holds.append(nbytes)

    def release(self, nbytes: int) -> None:
        self.releases.append(nbytes)
        super().release(nbytes)


class Harness:
    """An engine, and the bytes that its requests hold."""

    def __init__(self, model: EchoModel, engine: LocalEngine, memory: CountedLimit) -> None:
        self.model = model
        self.engine = engine
        self.memory = memory
        self.timings = Timings()

    async def begin(self, request: GenerateRequest, left_s: float | None = None) -> Any:
        self.timings = Timings()
        run = Run(Permit(RequestLimit("the server", None, None)), self.timings)
        return await self.engine.generate(run, request, Times(), left_s, True)

    async def text(self, request: GenerateRequest, left_s: float | None = None) -> str:
        generation = await self.begin(request, left_s)
        text: str = (await generation.collect()).choices[0].text
        return text

    def check_released(self, *holds: int) -> None:
        """Check that these bytes were held, and released once: at the end, or earlier as far as they were not taken."""
        assert self.memory.holds == list(holds)
        assert sum(self.memory.releases) == sum(holds)
        assert self.memory.held_bytes == 0


@asynccontextmanager
async def serving(
    prompts: ImagePrompts | None, behaviour: Callable[[list[str]], None] | None = None
) -> AsyncIterator[Harness]:
    """`prompts` None: the model reads no images."""
    model, threads, memory = EchoModel(behaviour), EngineThreads(), CountedLimit()
    threads.conversation_images = memory
    if prompts is not None:
        model.image_prompts = prompts  # type: ignore[attr-defined]
    engine = start_local_engine(SETTINGS, (model,), RunCounts(), SharedDevice(), threads)
    try:
        yield Harness(model, engine, memory)
    finally:
        await engine.close()
        threads.close()


def talk(*files: bytes, text: str = "abc", **fields: Any) -> GenerateRequest:
    """Return a request with a message of two, whose images are these files."""
    images = tuple(MessageImage(file, 0, f"messages[1].images[{i}]") for i, file in enumerate(files))
    prompt = Conversation((Message("system", ""), Message("user", text, images=images)))
    return GenerateRequest((prompt,), **{"stopping": Stopping(max_tokens=6), **fields})
