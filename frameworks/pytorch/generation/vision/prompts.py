"""Prompts of conversations with images: their token ids, and what the model computes of the images."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from PIL.Image import Image

from frameworks.core.errors import InvalidInput
from frameworks.core.text_lengths import TextLimit
from frameworks.generation.media import ImageGroup, PromptMedia
from frameworks.generation.types import Conversation, Message, MessageImage, VisionSpec
from frameworks.images.decode import ImageBounds, check_header, decode_rgb
from frameworks.pytorch.generation.prompts.tokenizer import HuggingFaceTokenizer
from frameworks.pytorch.generation.vision.processing import ImageProcessing

_TRIAL_TEXT = "4815162342"
# Bits of a hash. No two files of a server have the same.
_HASH_BYTES = 16


@dataclass(frozen=True, slots=True)
class PromptForm:
    """How a model reads images. `is_separate`: each image by itself, so that its vectors are kept for other prompts.
    `sees_ahead`: the tokens of an image see each other. `is_whole`: transformers' own pass reads the whole prompt.
    """

    is_separate: bool = False
    sees_ahead: bool = False
    is_whole: bool = False


class ImagePrompts:
    """Thread-safe."""

    def __init__(self, processing: ImageProcessing, tokenizer: HuggingFaceTokenizer, bounds: VisionSpec) -> None:
        self.processing = processing
        self.form = PromptForm()
        """Set once, before the first prompt of a request."""
        self._tokenizer = tokenizer
        self.bounds = bounds
        self._template_has_images = self._shows_images()

    @property
    def has_template(self) -> bool:
        """Whether the folder has a chat template."""
        return self._tokenizer.has_chat_template

    def check(self, images: Sequence[MessageImage]) -> list[tuple[int, int]]:
        """Return the height and width of each image, by its header. Raises InvalidInput beyond the bounds."""
        return check_images(images, self.bounds)

    def encode(self, conversation: Conversation, limit: TextLimit, max_tokens: int) -> tuple[list[int], PromptMedia]:
        """Return the token ids of a conversation with images, and its images. `max_tokens`: of the prompt.

        The tokens of the images are counted before any is decoded. Raises InvalidInput.
        """
        images = conversation.images
        num_tokens = self.processing.num_tokens(self.check(images))
        if num_tokens >= max_tokens:
            raise InvalidInput(
                "messages",
                f"expected at most {max_tokens} tokens, the model's context, got {num_tokens} of {len(images)} images "
                "alone; send fewer or smaller ones",
            )
        text = self.render(conversation)
        self._tokenizer.check_length(text, limit, "messages")
        pixels = [decode_rgb(each.data, check_header(each.data, each.field), each.field) for each in images]
        return self.of_text(text, pixels, [_hash_of(each.data) for each in images])

    def render(self, conversation: Conversation) -> str:
        """Return the prompt with a placeholder for each image. Raises InvalidInput."""
        if not self._template_has_images:
            messages = tuple(self._with_placeholders(each) for each in conversation.messages)
            conversation = replace(conversation, messages=messages)
        return self._tokenizer.render(conversation)

    def of_text(self, text: str, images: Sequence[Image], keys: Sequence[int]) -> tuple[list[int], PromptMedia]:
        """Return the token ids and the images of a prompt with placeholders. `keys`: hashes of the images."""
        placeholder = self.processing.placeholder
        if placeholder and text.count(placeholder) != len(images):
            raise InvalidInput(
                "messages",
                f"expected {placeholder} for each of {len(images)} images in the prompt, got it "
                f"{text.count(placeholder)} times; remove it from the texts, and send images with the role user",
            )
        try:
            if self.form.is_separate:
                return self._separate(text, images, keys)
            return self._together(text, images, keys)
        except InvalidInput:
            raise
        except (ValueError, RuntimeError, TypeError, LookupError, ArithmeticError) as error:
            # Each processor has bounds of its own, such as the ratio of the sides.
            raise InvalidInput(
                "messages", f"expected images that the model's processor reads, got an error: {error}; send others"
            ) from error

    def _together(self, text: str, images: Sequence[Image], keys: Sequence[int]) -> tuple[list[int], PromptMedia]:
        """As `of_text`, of images that the processor reads together."""
        inputs = self.processing.process(text, images)
        ids = [int(each) for each in inputs["input_ids"][0]]
        own = self.processing.with_positions(inputs)
        [key] = [_joined(keys)]
        if self.form.is_whole:
            # Its cache is no cache of blocks: the whole prompt is one span.
            group = ImageGroup(key, {}, ((0, len(ids)),))
            return ids, PromptMedia(len(ids), (group,), own, is_whole=True)
        spans = _runs(ids, self.processing.image_id)
        return self._known_ids(ids), PromptMedia(
            len(ids), (ImageGroup(key, own, spans),), {}, self.processing.positions(inputs), blocks=self._blocks(spans)
        )

    def _separate(self, text: str, images: Sequence[Image], keys: Sequence[int]) -> tuple[list[int], PromptMedia]:
        processing = self.processing
        processed = processing.process_each(images)
        adds_special_tokens = processing.adds_special_tokens(text)
        ids = self._tokenizer.ids_with_images(processing.expand(text, processed), adds_special_tokens)
        spans = _runs(ids, processing.image_id)
        counts = [processing.num_image_tokens(each) for each in processed]
        of_images = _divided(spans, counts)
        groups = tuple(
            ImageGroup(key, each.inputs, own) for key, each, own in zip(keys, processed, of_images, strict=True)
        )
        joined = _concatenated([each.inputs for each in processed]) | {"input_ids": torch.tensor([ids])}
        positions = processing.positions(joined)
        media = PromptMedia(len(ids), groups, {}, positions, blocks=self._blocks(spans))
        return self._known_ids(ids), media

    def _blocks(self, spans: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        return spans if self.form.sees_ahead else ()

    def _known_ids(self, ids: list[int]) -> list[int]:
        """Return the ids, those of images that the vocabulary lacks as 0: vectors replace their embeddings."""
        size = self._tokenizer.vocabulary_size
        return ids if max(ids) < size else [0 if each >= size else each for each in ids]

    def _with_placeholders(self, message: Message) -> Message:
        """Return a message with the placeholder in its content for each image."""
        content, end = "", 0
        for image in message.images:
            content += message.content[end : image.at] + self.processing.placeholder
            end = image.at
        return replace(message, content=content + message.content[end:], images=())

    def _shows_images(self) -> bool:
        """Return whether the chat template reads images as parts of a content."""
        if not self._tokenizer.has_chat_template or not self.processing.placeholder:
            return True
        trial = Conversation((Message("user", _TRIAL_TEXT, images=(MessageImage(b"", 0, ""),)),))
        try:
            text = self._tokenizer.render(trial)
        except InvalidInput:
            return False
        return text.count(self.processing.placeholder) == 1 and _TRIAL_TEXT in text


def check_images(images: Sequence[MessageImage], bounds: VisionSpec, field: str = "messages") -> list[tuple[int, int]]:
    """Return the height and width of each image, by its header. `field`: of all images together.

    Raises InvalidInput beyond the bounds.
    """
    if len(images) > bounds.max_images:
        raise InvalidInput(
            field,
            f"expected at most {bounds.max_images} images, got {len(images)}; send fewer, or raise max_images of "
            "the model",
        )
    limit = ImageBounds(max_pixels=bounds.max_image_pixels)
    headers = [check_header(each.data, each.field, limit) for each in images]
    return [(header.height, header.width) for header in headers]


def _runs(ids: Sequence[int], image_id: int | None) -> tuple[tuple[int, int], ...]:
    """Return the spans of adjacent image tokens, as (first, end)."""
    is_image = np.concatenate(([False], np.asarray(ids) == (-1 if image_id is None else image_id), [False]))
    borders = np.flatnonzero(is_image[1:] != is_image[:-1]).tolist()
    return tuple(zip(borders[::2], borders[1::2], strict=True))


def _divided(spans: Sequence[tuple[int, int]], counts: Sequence[int]) -> list[tuple[tuple[int, int], ...]]:
    """Return the spans of each image. `counts`: its tokens. Raises InvalidInput where they are not those of the prompt.

    Adjacent images share a span of the prompt.
    """
    tokens = [token for first, end in spans for token in range(first, end)]
    if len(tokens) != sum(counts) or not all(counts):
        raise InvalidInput(
            "messages",
            f"expected {sum(counts)} image tokens in the prompt, got {len(tokens)}; remove the model's image token "
            "from the texts",
        )
    found, end = [], 0
    for count in counts:
        own = tokens[end : end + count]
        end += count
        runs = [[token for _, token in run] for _, run in groupby(enumerate(own), lambda each: each[1] - each[0])]
        found.append(tuple((run[0], run[-1] + 1) for run in runs))
    return found


def _concatenated(inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the tensors of several images together, without their pixels."""
    first = inputs[0] if inputs else {}
    names = [name for name, value in first.items() if isinstance(value, torch.Tensor) and "pixel" not in name]
    return {name: torch.cat([each[name] for each in inputs]) for name in names}


def _hash_of(data: bytes) -> int:
    """Return the hash of a file as an integer below -1."""
    return -2 - int.from_bytes(hashlib.blake2b(data, digest_size=_HASH_BYTES).digest(), "big")


def _joined(keys: Sequence[int]) -> int:
    return keys[0] if len(keys) == 1 else _hash_of(repr(tuple(keys)).encode())
