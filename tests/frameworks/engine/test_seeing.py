"""Contents of one request: prepared, counted once, held until the model has run, and named in errors."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from frameworks.core.errors import InvalidInput, Overloaded
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run
from frameworks.engine.seeing.service import SeeingService
from frameworks.engine.threads import EngineThreads
from frameworks.generation.types import Conversation, Message, MessageImage, PromptEnding, VisionSpec
from frameworks.images.spec import ImageRequest
from frameworks.tasks.types import TaskItem
from frameworks.types import (
    TASK_OUTPUT,
    ConversationRequest,
    EmbedAnswer,
    ImagePairRequest,
    ModelSpec,
    MultiVectorAnswer,
    PairRequest,
    TaskBatch,
    TextRequest,
    TextSpec,
)
from tests.support.loops import in_loop

SIZE = 4
TALK = Conversation((Message("user", "a", images=(MessageImage(b"12", 0, "messages[0]"),)),))


class Contents:
    """A model whose rows are made of the bytes of a content, and its prompts, queue, and tenant."""

    def __init__(self, *, pages: bool = False, quota: int = 1000) -> None:
        text = TextSpec(99, embedding_size=SIZE, vectors="multi" if pages else "dense", are_queries=pages)
        bounds = None if pages else VisionSpec(2, 100)
        self.spec = ModelSpec("pytorch", "embed", (), (), "cpu", "float32", 0, text=text, messages=bounds)
        self.threads = EngineThreads()
        self.pages = pages
        self.counted: list[int] = []
        self.quota = quota
        self.held: list[int] = []
        model: Any = self
        self.service = SeeingService(model, self, self.submit, self.threads)

    @property
    def run(self) -> Run:
        permit = SimpleNamespace(begin=lambda: None, tenant=None, token_budget=self)
        return cast("Run", SimpleNamespace(permit=permit, priority=3, timings=Timings()))

    async def start(self, tokens: int) -> None:
        self.counted.append(tokens)
        if tokens > self.quota:
            raise Overloaded("no tokens left", 1.0)

    def check(self, images: Sequence[MessageImage], field: str) -> None:
        if len(images) > 2:
            raise InvalidInput(field, "expected fewer")

    def of_text(self, text: str, field: str, truncate: object, prompt: str | None) -> TaskItem:
        if not text:
            raise InvalidInput(field, "expected a text")
        return self._item(text.encode())

    def of_image(self, image: MessageImage) -> TaskItem:
        return self._item(image.data)

    def of_conversation(self, conversation: Conversation, ending: PromptEnding | None) -> TaskItem:
        return self._item(b"".join(each.data for each in conversation.images))

    def _item(self, content: bytes) -> TaskItem:
        return TaskItem(content, len(content), (len(content),), 10 * len(content), len(content))

    def submit(self, batch: TaskBatch, *_: Any) -> "asyncio.Future[Any]":
        self.held.append(self.threads.conversation_images.held_bytes)
        rows = np.empty(batch.rows, object)
        for at, item in enumerate(batch.items):
            row = np.resize(np.frombuffer(item.value, np.uint8).astype(np.float32), SIZE)
            rows[at] = np.stack([row, -row]) if self.pages else row
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done.set_result({TASK_OUTPUT: rows})
        return done


@in_loop
async def test_tokens_counted_once_for_all_contents() -> None:
    contents = Contents()
    answer = await contents.service.answer(contents.run, TextRequest(["ab", "c", "de"]))
    assert isinstance(answer, EmbedAnswer)
    np.testing.assert_allclose(np.linalg.norm(answer.embeddings, axis=1), 1, rtol=1e-6)
    assert (answer.tokens, contents.counted) == (5, [5])
    scored = await contents.service.score_images(contents.run, ImagePairRequest("ab", [b"ab", b"a\x01"]))
    assert (scored.tokens, contents.counted) == (6, [5, 6])
    assert scored.scores[0] == pytest.approx(1)
    assert scored.scores[1] < 0.999
    contents.threads.close()


@in_loop
async def test_bytes_held_until_model_has_run() -> None:
    contents = Contents()
    memory = contents.threads.conversation_images
    for request in (ImageRequest([b"12", b"123"]), ConversationRequest(TALK)):
        await contents.service.answer(contents.run, request)
        assert memory.held_bytes == 0
    # The second request expects images as large as those of the first one.
    assert contents.held == [6, 6, 20]
    contents.quota = 0
    with pytest.raises(Overloaded):
        await contents.service.answer(contents.run, ImageRequest([b"12"]))
    assert memory.held_bytes == 0
    contents.threads.close()


@in_loop
async def test_pages_have_vectors_for_tokens() -> None:
    contents = Contents(pages=True)
    images = ImageRequest([b"ab", b"c"], vectors=("multi",))
    answer = await contents.service.answer(contents.run, images)
    assert isinstance(answer, MultiVectorAnswer)
    assert [each.shape for each in answer.vectors] == [(2, SIZE), (2, SIZE)]
    scored = await contents.service.score_images(contents.run, ImagePairRequest("ab", [b"ab"]))
    assert scored.scores == [pytest.approx(2)]
    for request in (ImageRequest([b"ab"]), ConversationRequest(TALK), TextRequest(["a"])):
        with pytest.raises(InvalidInput):
            await contents.service.answer(contents.run, request)
    with pytest.raises(InvalidInput, match="expected images, as the model reads texts as queries"):
        await contents.service.score(contents.run, PairRequest([("a", "b")]))
    contents.threads.close()


@in_loop
async def test_errors_name_contents_of_request() -> None:
    contents = Contents()
    with pytest.raises(InvalidInput, match=r"text\[1\]: expected a text"):
        await contents.service.answer(contents.run, TextRequest(["a", ""]))
    with pytest.raises(InvalidInput, match=r"pairs\[0\]\[1\]: expected a text"):
        await contents.service.score(contents.run, PairRequest([("a", "")]))
    with pytest.raises(InvalidInput, match="image: expected fewer"):
        await contents.service.answer(contents.run, ImageRequest([b"a"] * 3))
    with pytest.raises(InvalidInput, match="got token ids"):
        await contents.service.answer(contents.run, TextRequest([], token_ids=[[1]]))
    contents.threads.close()
