"""Prompts of conversations with images and videos: their token ids, and what the model computes of the files."""

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
from frameworks.images.decode import check_header, decode_rgb
from frameworks.pytorch.generation.prompts.tokenizer import HuggingFaceTokenizer
from frameworks.pytorch.generation.vision.file_bounds import check_images
from frameworks.pytorch.generation.vision.processing import IMAGE, VIDEO, ImageProcessing, SampledVideo
from frameworks.pytorch.generation.vision.videos import (
    VideoSelection,
    decode_selection,
    no_videos_because,
    select_frames,
)

_TRIAL_TEXT = "4815162342"
# Video-LLaVA has a name of its own.
_IMAGE_PIXELS, _VIDEO_PIXELS = frozenset({"pixel_values", "pixel_values_images"}), "pixel_values_videos"
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
        reason = bounds.no_videos_because or no_videos_because(processing)
        self.bounds = replace(bounds, no_videos_because=reason)
        """`no_videos_because` may be set once more, before the first prompt of a request."""
        self._template_has_images = self._shows(MessageImage(b"", 0, ""), processing.placeholder)
        self._template_has_videos = self._shows(MessageImage(b"", 0, "", is_video=True), processing.video_placeholder)

    @property
    def has_template(self) -> bool:
        """Whether the folder has a chat template."""
        return self._tokenizer.has_chat_template

    def check(self, images: Sequence[MessageImage]) -> list[tuple[int, int]]:
        """Return the height and width of each image, by its header. Videos are not read. Raises InvalidInput beyond the
        bounds, and for a video that the model does not read.
        """
        return check_images(images, self.bounds)

    def select(self, conversation: Conversation) -> list[VideoSelection]:
        """Return the frames that the model reads of each video, after `check`. Raises InvalidInput."""
        return select_frames([each for each in conversation.images if each.is_video], self.processing, self.bounds)

    def encode(
        self,
        conversation: Conversation,
        limit: TextLimit,
        max_tokens: int,
        selections: Sequence[VideoSelection] = (),
    ) -> tuple[list[int], PromptMedia]:
        """Return the token ids of a conversation with images or videos, and its files. `max_tokens`: of the prompt.
        `selections`: as of `select`.

        The tokens of the images are counted before any is decoded. Raises InvalidInput.
        """
        files = conversation.images
        images = [each for each in files if not each.is_video]
        num_tokens = self.processing.num_tokens(self.check(files))
        if num_tokens >= max_tokens:
            raise InvalidInput(
                "messages",
                f"expected at most {max_tokens} tokens, the model's context, got {num_tokens} of {len(images)} images "
                "alone; send fewer or smaller ones",
            )
        text = self.render(conversation)
        self._tokenizer.check_length(text, limit, "messages")
        pixels = [decode_rgb(each.data, check_header(each.data, each.field), each.field) for each in images]
        videos = [decode_selection(each, self.bounds) for each in selections]
        return self.of_text(text, pixels, [_hash_of(each.data) for each in files], videos)

    def render(self, conversation: Conversation) -> str:
        """Return the prompt with a placeholder for each image and video. Raises InvalidInput."""
        if not (self._template_has_images and self._template_has_videos):
            messages = tuple(self._with_placeholders(each) for each in conversation.messages)
            conversation = replace(conversation, messages=messages)
        return self._tokenizer.render(conversation)

    def of_text(
        self, text: str, images: Sequence[Image], keys: Sequence[int], videos: Sequence[SampledVideo] = ()
    ) -> tuple[list[int], PromptMedia]:
        """Return the token ids and the files of a prompt with placeholders. `keys`: hashes of all files, in their
        order.
        """
        _check_placeholders(text, self.processing.placeholder, len(images), "images")
        if videos:
            _check_placeholders(text, self.processing.video_placeholder, len(videos), "videos")
        if images and videos and not self.processing.mixes_files:
            raise _both_refused()
        try:
            if self.form.is_separate and not videos:
                return self._separate(text, images, keys)
            return self._together(text, images, keys, videos)
        except InvalidInput:
            raise
        except (ValueError, RuntimeError, TypeError, LookupError, ArithmeticError) as error:
            # Each processor has bounds of its own, such as the ratio of the sides.
            raise InvalidInput(
                "messages", f"expected files that the model's processor reads, got an error: {error}; send others"
            ) from error

    def _together(
        self, text: str, images: Sequence[Image], keys: Sequence[int], videos: Sequence[SampledVideo]
    ) -> tuple[list[int], PromptMedia]:
        """As `of_text`, of files that the processor reads together."""
        inputs = self.processing.process(text, images, videos)
        ids = [int(each) for each in inputs["input_ids"][0]]
        if images and videos and _VIDEO_PIXELS in inputs:
            self._check_both(ids)
        own = self.processing.with_positions(inputs)
        if self.form.is_whole:
            # Its cache is no cache of blocks: the whole prompt is one span.
            group = ImageGroup(_joined(keys), {}, ((0, len(ids)),))
            return ids, PromptMedia(len(ids), (group,), own, is_whole=True)
        groups = self._groups(ids, _joined(keys), own, bool(videos))
        spans = tuple(sorted(span for group in groups for span in group.spans))
        positions = self.processing.positions(inputs)
        return self._known_ids(ids), PromptMedia(len(ids), groups, {}, positions, blocks=self._blocks(spans))

    def _check_both(self, ids: Sequence[int]) -> None:
        """Raise InvalidInput where transformers does not tell the tokens of images and of videos apart (GLM, Molmo)."""
        kinds = self.processing.kinds(ids)
        of_images, of_videos = (
            {token for token, each in zip(ids, kinds, strict=True) if each == kind} for kind in (IMAGE, VIDEO)
        )
        if not (of_images and of_videos and of_images.isdisjoint(of_videos)):
            raise _both_refused()

    def _groups(
        self, ids: Sequence[int], key: int, inputs: Mapping[str, Any], has_videos: bool
    ) -> tuple[ImageGroup, ...]:
        """Return the images of a prompt as one group, and its videos as another one, unless the model reads the frames
        of videos as images.
        """
        if not has_videos:
            return (ImageGroup(key, inputs, _runs(ids, self.processing.image_id)),)
        kinds = self.processing.kinds(ids)
        if _VIDEO_PIXELS not in inputs:
            return (ImageGroup(key, inputs, _runs([int(kind > 0) for kind in kinds], 1)),)
        of_videos = {name: value for name, value in inputs.items() if name not in _IMAGE_PIXELS}
        groups = [ImageGroup(_hash_of(f"videos {key}".encode()), of_videos, _runs(kinds, VIDEO))]
        if _IMAGE_PIXELS & inputs.keys():
            of_images = {name: value for name, value in inputs.items() if name != _VIDEO_PIXELS}
            groups.append(ImageGroup(key, of_images, _runs(kinds, IMAGE)))
        return tuple(sorted(groups, key=lambda group: group.spans[:1]))

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
        """Return a message with a placeholder in its content for each file that the chat template does not show."""
        processing, shown, content, end = self.processing, [], "", 0
        for file in message.images:
            content += message.content[end : file.at]
            end = file.at
            if self._template_has_videos if file.is_video else self._template_has_images:
                shown.append(replace(file, at=len(content)))
            else:
                content += processing.video_placeholder if file.is_video else processing.placeholder
        return replace(message, content=content + message.content[end:], images=tuple(shown))

    def _shows(self, file: MessageImage, placeholder: str) -> bool:
        """Return whether the chat template reads such files as parts of a content."""
        if not self._tokenizer.has_chat_template or not placeholder:
            return True
        trial = Conversation((Message("user", _TRIAL_TEXT, images=(file,)),))
        try:
            text = self._tokenizer.render(trial)
        except InvalidInput:
            return False
        return text.count(placeholder) == 1 and _TRIAL_TEXT in text


def _both_refused() -> InvalidInput:
    return InvalidInput(
        "messages",
        "expected images or videos, as the model does not read both in one conversation, got both; send two "
        "conversations",
    )


def _check_placeholders(text: str, placeholder: str, count: int, what: str) -> None:
    """Raise InvalidInput where a prompt has not one placeholder for each file."""
    if placeholder and text.count(placeholder) != count:
        raise InvalidInput(
            "messages",
            f"expected {placeholder} for each of {count} {what} in the prompt, got it {text.count(placeholder)} times; "
            f"remove it from the texts, and send {what} with the role user",
        )


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
