"""Prepare queries and pages for models of late interaction that see, by transformers' processor of the model."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.generation.types import Conversation, MessageImage, PromptEnding, VisionSpec
from frameworks.images.decode import check_header, decode_rgb
from frameworks.pytorch.encoders.seeing.items import PROBES, PROCESSOR_ERRORS, ContentTokenizer, item_of
from frameworks.pytorch.generation.vision.file_bounds import check_images
from frameworks.pytorch.generation.vision.processor_loading import load_processor
from frameworks.tasks.types import TaskItem
from frameworks.text.config import TextConfig
from frameworks.types import Truncation


class PagePrompts:
    """Implements ContentPrompts. Each text is a query, each image a page."""

    def __init__(self, folder: Path, config: TextConfig, bounds: VisionSpec) -> None:
        """Raises InvalidModel where the folder has no processor for queries and images."""
        try:
            self._processor = load_processor(folder)
        except InvalidModel as error:
            raise InvalidModel(f"{folder}: {error.message}") from error
        missing = [name for name in ("process_queries", "process_images") if not hasattr(self._processor, name)]
        if missing:
            raise InvalidModel(
                f"{folder}: expected a processor of queries and pages, got {type(self._processor).__name__} without "
                f"{missing[0]}; add the processor_config.json of the published model"
            )
        self.tokenizer = ContentTokenizer(folder, config)
        self._max_tokens = config.max_tokens
        self._bounds = bounds
        # transformers' tokenizers are for one thread at a time.
        self._lock = Lock()

    def check(self, images: Sequence[MessageImage], field: str) -> None:
        """As ContentPrompts.check."""
        check_images(images, self._bounds, field)

    def of_text(self, text: str, field: str, truncate: Truncation, prompt: str | None) -> TaskItem:
        """As ContentPrompts.of_text."""
        part = self.tokenizer.part_of((prompt or "") + text, field, truncate)
        inputs = self._query(part, field)
        if inputs["input_ids"].shape[1] > self._max_tokens:
            probes = [self._query(each, field)["input_ids"][0].tolist() for each in PROBES]
            inputs = self.tokenizer.cut(inputs, probes, field, truncate)
        return item_of(inputs)

    def of_image(self, image: MessageImage) -> TaskItem:
        """As ContentPrompts.of_image."""
        pixels = decode_rgb(image.data, check_header(image.data, image.field), image.field)
        inputs = self._processed(partial(self._processor.process_images, images=[pixels]), image.field)
        num_tokens = int(inputs["input_ids"].shape[1])
        if num_tokens > self._max_tokens:
            raise InvalidInput(
                image.field,
                f"expected an image of at most {self._max_tokens} tokens, the model's limit, got {num_tokens}; "
                "send a smaller one",
            )
        return item_of(inputs)

    def of_conversation(self, conversation: Conversation, ending: PromptEnding | None) -> TaskItem:
        """As ContentPrompts.of_conversation, which no such model has."""
        raise InvalidInput("messages", "expected texts or images, as the model reads no conversations; send them")

    def _query(self, text: str, field: str) -> dict[str, Any]:
        return self._processed(partial(self._processor.process_queries, text=[text]), field)

    def _processed(self, process: Callable[[], Any], field: str) -> dict[str, Any]:
        """Return the tensors of a text or an image, with one row each. Raises InvalidInput."""
        try:
            with self._lock:
                return dict(process())
        except PROCESSOR_ERRORS as error:
            raise InvalidInput(
                field, f"expected a content that the model's processor reads, got an error: {error}; send another"
            ) from error
