"""Requests of models that embed texts and images alike: contents to items of a model, rows to vectors or scores."""

import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from frameworks.core.errors import InvalidInput
from frameworks.core.timings import Timings
from frameworks.engine.contract import Run
from frameworks.engine.images import HeldImages
from frameworks.engine.seeing.image_pairs import similarities
from frameworks.engine.tasks import Submit, at_once, run_items
from frameworks.engine.text_answers import cosines, distinct_texts
from frameworks.engine.texts import kinds_of
from frameworks.engine.threads import EngineThreads
from frameworks.generation.types import MessageImage
from frameworks.images.spec import ImageRequest
from frameworks.runtime import BatchModel
from frameworks.tasks.types import TaskItem
from frameworks.text.contents import ContentPrompts
from frameworks.text.pooling import normalize_rows
from frameworks.types import (
    Array,
    ConversationRequest,
    EmbedAnswer,
    ImagePairRequest,
    MultiVectorAnswer,
    PairRequest,
    ScoreAnswer,
    TextRequest,
    TextSpec,
    Truncation,
)

_NO_ROWS = np.empty((0, 0), dtype=np.float32)
_Vectors = EmbedAnswer | MultiVectorAnswer


class SeeingService:
    """Answer the requests of one model that embeds texts and images alike. Owned by the event loop.

    Adds to the timings of the run; raises as Engine.answer.
    """

    def __init__(self, model: BatchModel, prompts: ContentPrompts, submit: Submit, threads: EngineThreads) -> None:
        """`submit`: queues items, as Dispatcher.submit. `threads`: prepare the contents."""
        assert model.spec.text is not None
        self._text: TextSpec = model.spec.text
        self._has_messages = model.spec.messages is not None
        self._prompts = prompts
        self._submit = submit
        self._threads = threads
        # Of the images so far: what the next one will take, at least as much as its file.
        self._image_bytes = 1

    async def answer(self, run: Run, request: TextRequest | ImageRequest | ConversationRequest) -> _Vectors:
        """Embed texts, images, or one conversation. Raises InvalidInput; its field is `text[2]`, `image[2]`, or one of
        the conversation.
        """
        if isinstance(request, TextRequest):
            kinds_of(self._text, request)
            if request.token_ids is not None:
                raise InvalidInput("text", "expected a string or a list of strings, got token ids; send text")
            items = await self._of_texts(run, request.texts, request.truncate, request.prompt)
            return await self._vectors_of(run, items, request.normalize, request.dimensions)
        if isinstance(request, ImageRequest):
            _check_kind(self._text, request)
        elif not self._has_messages:
            raise InvalidInput("messages", "expected texts or images for this model, got a conversation; send input")
        held = HeldImages(self._threads.conversation_images)
        try:
            items = await self._of_images(run, request, held)
            return await self._vectors_of(run, items, request.normalize, request.dimensions)
        finally:
            held.release()

    async def score(self, run: Run, request: PairRequest) -> ScoreAnswer:
        """Return the cosines of pairs of texts. Raises InvalidInput, with the field of a pair."""
        if self._text.are_queries:
            raise InvalidInput(
                "pairs[0][1]", 'expected images, as the model reads texts as queries, got texts; send {"image": "…"}'
            )
        pairs = distinct_texts(request)
        try:
            items = await self._of_texts(run, pairs.texts, request.truncate, None)
        except InvalidInput as error:
            raise pairs.name_pair(error) from None
        embedded = await self._vectors_of(run, items, True, None)
        assert isinstance(embedded, EmbedAnswer)
        return await self._threads.tokenizers.compute(embedded.embeddings.size, cosines, pairs, embedded)

    async def score_images(self, run: Run, request: ImagePairRequest) -> ScoreAnswer:
        """Return the cosines of a text and images, or their MaxSim. Raises InvalidInput as `answer`."""
        if not request.images:
            return ScoreAnswer([], tokens=0)
        held = HeldImages(self._threads.conversation_images)
        try:
            items = await self._of_texts(run, [request.query], request.truncate, None)
            items += await self._of_images(run, ImageRequest(request.images), held)
            rows, tokens = await self._rows_of(run, items)
        finally:
            held.release()
        query, *images = map(normalize_rows, rows) if self._text.vectors == "multi" else normalize_rows(np.stack(rows))
        size = sum(row.size for row in images)
        scores = await self._threads.tokenizers.compute(size, similarities, self._text.vectors, query, images)
        return ScoreAnswer(scores, tokens)

    async def _of_texts(self, run: Run, texts: list[str], truncate: Truncation, prompt: str | None) -> list[TaskItem]:
        prompts = self._prompts

        def prepare(start: int, stop: int) -> list[TaskItem]:
            return [prompts.of_text(texts[at], f"text[{at}]", truncate, prompt) for at in range(start, stop)]

        if not texts:
            return []
        begun_s = time.perf_counter()
        try:
            pieces = await self._threads.tokenizers.run_pieces(map(len, texts), prepare)
        finally:
            run.timings.decoded(begun_s, time.perf_counter())
        return list(chain.from_iterable(pieces))

    async def _of_images(
        self, run: Run, request: ImageRequest | ConversationRequest, held: HeldImages
    ) -> list[TaskItem]:
        """Prepare each image, or the conversation. `held`: of their bytes, until the model has run."""
        if isinstance(request, ImageRequest):
            images = tuple(MessageImage(data, 0, f"image[{at}]") for at, data in enumerate(request.images))
            field = "image"
        else:
            images, field = request.conversation.images, "messages"
        # Before anything is held: headers are read in microseconds.
        self._prompts.check(images, field)
        await self._hold(images, held, run.timings)
        begun_s = time.perf_counter()
        try:
            if isinstance(request, ConversationRequest):
                work = self._prompts.of_conversation
                items = [await self._threads.run_task(None, work, request.conversation, request.ending)]
            else:
                items = await self._prepared(images)
        finally:
            run.timings.decoded(begun_s, time.perf_counter())
        nbytes = sum(item.nbytes for item in items)
        self._image_bytes = max(self._image_bytes, nbytes // max(1, len(images)))
        held.shrink(nbytes)
        return items

    async def _hold(self, images: Sequence[MessageImage], held: HeldImages, timings: Timings) -> None:
        if images:
            file_bytes = max(len(each.data) for each in images)
            await held.hold(len(images) * max(self._image_bytes, file_bytes), timings)

    async def _prepared(self, images: Sequence[MessageImage]) -> list[TaskItem]:
        items: list[Any] = [None] * len(images)
        left = iter(range(len(images)))

        async def prepare_some() -> None:
            for at in left:
                items[at] = await self._threads.run_task(None, self._prompts.of_image, images[at])

        if images:
            await at_once(prepare_some, len(images))
        return items

    async def _rows_of(self, run: Run, items: list[TaskItem]) -> tuple[list[Array], int]:
        """Return the row of each item, and the number of tokens. Raises QuotaExceeded without tokens left."""
        tokens = sum(item.num_tokens for item in items)
        budget = run.permit.token_budget
        if budget is not None:
            await budget.start(tokens)
        return await run_items(run, self._submit, items), tokens

    async def _vectors_of(
        self, run: Run, items: list[TaskItem], normalize: bool | None, dimensions: int | None
    ) -> _Vectors:
        is_multi = self._text.vectors == "multi"
        if not items:
            return MultiVectorAnswer([], tokens=0) if is_multi else EmbedAnswer(_NO_ROWS, tokens=0)
        rows, tokens = await self._rows_of(run, items)
        wants = self._text.normalize if normalize is None else normalize
        size = sum(row.size for row in rows)
        finish = _multi_vectors if is_multi else _embeddings
        return await self._threads.tokenizers.compute(size, finish, rows, wants, dimensions, tokens)


def _embeddings(rows: list[Array], normalize: bool, dimensions: int | None, tokens: int) -> _Vectors:
    stacked = np.stack(rows)[:, :dimensions]
    return EmbedAnswer(normalize_rows(stacked) if normalize else stacked, tokens)


def _multi_vectors(rows: list[Array], normalize: bool, _: int | None, tokens: int) -> _Vectors:
    return MultiVectorAnswer([normalize_rows(row) for row in rows] if normalize else rows, tokens)


def _check_kind(text: TextSpec, request: ImageRequest) -> None:
    """Raise InvalidInput where the response of the request's protocol cannot hold the model's vectors."""
    if text.vectors not in request.vectors:
        raise InvalidInput(
            "model",
            "expected a model with one vector for each image, got one with a vector for each token; post the images "
            "to /infer or /pooling, or a query and images to /rerank",
        )
