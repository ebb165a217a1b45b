"""transformers' processor of a model that sees: a text with placeholders, and its files, to tokens and tensors."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from PIL.Image import Image
from transformers import GenerationMixin, Idefics3Processor
from transformers.video_utils import VideoMetadata, default_sample_indices_fn

from frameworks.generation.media import Positions
from frameworks.media.video import Frames, VideoSize
from frameworks.pytorch.generation.vision.processor_loading import UnreadVideos, load_processor

_TOKEN_NAMES = ("image_token_id", "image_token_index")
_VIDEO_TOKEN_NAMES = ("video_token_id", "video_token_index")
# Tensors that are no argument of the model's own pass, or that generation drops.
_DROPPED = ("input_ids", "attention_mask", "text_replacement_offsets", "video_metadata")
# Seconds, from which positions are computed.
_NOT_NARROWED = ("second_per_grid_ts",)
# Arguments of a processor of videos that its sampling does not have.
_NOT_SAMPLING = ("input_data_format", "do_convert_rgb", "do_sample_frames", "device", "video_metadata")
_EVEN_FRAMES = 32
IMAGE, VIDEO = 1, 2
"""The kinds of tokens whose vectors are computed, as transformers counts them; 0 is a text."""


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """One image by itself. `text`: what replaces its placeholder. `inputs`: its tensors."""

    text: str
    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SampledVideo:
    """Frames of a video as the model reads them, [frames, height, width, 3]. `indices`: of the frames in the file."""

    frames: Frames
    indices: tuple[int, ...]
    size: VideoSize

    @property
    def metadata(self) -> VideoMetadata:
        """Return what transformers' processors read of it."""
        size = self.size
        metadata = _metadata_of(size)
        metadata.frames_indices = list(self.indices)
        return metadata


class ImageProcessing:
    """Thread-safe: one thread at a time processes, as transformers' tokenizers demand."""

    def __init__(self, folder: Path, whole: Any, image_settings: Mapping[str, Any] | None = None) -> None:
        """`whole`: transformers' model, with or without its head. `image_settings`: of the processor of images, instead
        of those of its files. Raises InvalidModel where the folder has no processor for images and text.
        """
        self._processor = load_processor(folder)
        self._settings = {"images_kwargs": dict(image_settings)} if image_settings else {}
        self._lock = Lock()
        self._dtype: torch.dtype = whole.dtype
        names = ("image_placeholder_token", "image_token")  # Qianfan has one for the text of prompts
        tokens = (getattr(self._processor, name, None) for name in names)
        self.placeholder: str = next((each for each in tokens if isinstance(each, str)), "")
        """Stands for an image in the text of a prompt; empty where the processor knows none."""
        video_token = getattr(self._processor, "video_token", None)
        self.video_placeholder: str = video_token if isinstance(video_token, str) else ""
        """Stands for a video, as `placeholder`."""
        ids = (getattr(whole.config, name, None) for name in _TOKEN_NAMES)
        self.image_id: int | None = next((each for each in ids if isinstance(each, int)), None)
        """The token that vectors of images replace; None where transformers' config names none."""
        videos = (getattr(whole.config, name, None) for name in _VIDEO_TOKEN_NAMES)
        self._replaced_ids = (self.image_id, *(each for each in videos if isinstance(each, int)))
        # Most models count tokens; Qwen's have sections.
        own = getattr(type(whole), "_prepare_position_ids_for_generation", None)
        # A model without its head computes them in its own pass.
        self._has_positions = own not in (None, GenerationMixin._prepare_position_ids_for_generation)
        # Else it need not be kept until the last reference to the processor ends.
        self._whole: Any = whole if self._has_positions else None
        reads_types = "mm_token_type_ids" in inspect.signature(whole.forward).parameters
        self._reads_types = reads_types and (self._has_positions or own is None)

    @property
    def no_videos_because(self) -> str | None:
        """Return why the processor reads no videos; None: it reads them."""
        processor = getattr(self._processor, "video_processor", None)
        if isinstance(processor, UnreadVideos):
            return "transformers' processor of its videos needs torchvision, which is not installed"
        if processor is None or not self.video_placeholder:
            return "its processor reads none"
        module = sys.modules[type(self._processor).__module__]
        if getattr(module, "num2words", "") is None:
            # SmolVLM's prompts have the number of frames in words.
            return "transformers' processor of its videos needs num2words, which is not installed"
        return None

    @property
    def mixes_files(self) -> bool:
        """Whether images and videos may be in one prompt: SmolVLM's processor has one name for the tensors of both."""
        return "pixel_values" not in self._processor.video_processor.model_input_names

    def sample(self, size: VideoSize) -> tuple[int, ...]:
        """Return the indices of the frames that the processor reads of a video, ascending: by its own rule, or 32 at
        even distances where it has none. Raises ValueError and others for a video that it does not sample.
        """
        processor, metadata = self._processor.video_processor, _metadata_of(size)
        with self._lock:
            merged = self._processor._merge_kwargs(tokenizer_init_kwargs=self._processor.tokenizer.init_kwargs)
        options = dict(merged["videos_kwargs"])
        for name in processor.valid_kwargs.__annotations__:
            options.setdefault(name, getattr(processor, name, None))
        # As transformers decides it for a conversation.
        if not options["do_sample_frames"] and options["num_frames"] is None and options["fps"] is None:
            return tuple(default_sample_indices_fn(metadata, num_frames=min(_EVEN_FRAMES, size.num_frames)).tolist())
        options = {name: value for name, value in options.items() if name not in _NOT_SAMPLING}
        return tuple(int(index) for index in processor.sample_frames(metadata=metadata, **options))

    def num_tokens(self, sizes: Sequence[tuple[int, int]]) -> int:
        """Return the tokens of images by their sizes, (height, width); 0 where the processor cannot tell."""
        processor = self._processor
        count = getattr(processor, "_get_num_multimodal_tokens", None)
        if count is None and hasattr(processor, "image_seq_len"):
            # SmolVLM writes images as Idefics 3 does.
            count = partial(Idefics3Processor._get_num_multimodal_tokens, processor)
        if count is None:
            return 0
        try:
            with self._lock:
                sides = [list(size) for size in sizes]
                return sum(count(image_sizes=sides, **self._settings)["num_image_tokens"])
        except Exception:  # noqa: BLE001 - an aid of transformers that is not whole for each model
            return 0

    def process(self, text: str, images: Sequence[Image], videos: Sequence[SampledVideo] = ()) -> dict[str, Any]:
        """Return what the processor makes of a prompt: `input_ids`, int64 [1, tokens], and its other tensors, floating
        ones in the dtype of the model. Raises ValueError and others where text, images and videos do not fit.
        """
        media: dict[str, Any] = {"images": [list(images)]} if images or not videos else {}
        if videos:
            media["videos"] = [[each.frames for each in videos]]
            media |= {"video_metadata": [each.metadata for each in videos], "do_sample_frames": False}
            # Some write the times of the frames.
            media["return_metadata"] = True
        with self._lock:
            made = self._processor(
                text=text,
                **media,
                add_special_tokens=self.adds_special_tokens(text),
                return_tensors="pt",
                **self._settings,
            )
        inputs = {name: self._narrowed(name, value) for name, value in made.items() if name not in _DROPPED[1:]}
        if self._reads_types and "mm_token_type_ids" not in inputs:
            types = self._processor.create_mm_token_type_ids(inputs["input_ids"].tolist())
            inputs["mm_token_type_ids"] = torch.tensor(types)
        return inputs

    def adds_special_tokens(self, text: str) -> bool:
        """Return whether a prompt of the chat template still needs the tokens before a text, as transformers decides
        it for conversations of a processor.
        """
        first = self._processor.tokenizer.bos_token
        return first is None or not text.startswith(first)

    def process_each(self, images: Sequence[Image]) -> list[ProcessedImage]:
        """Process each image by itself, as the first of a prompt. Raises as `process`."""
        processor, found = self._processor, []
        for image in images:
            with self._lock:
                options = processor._merge_kwargs(
                    tokenizer_init_kwargs=processor.tokenizer.init_kwargs, return_tensors="pt"
                )["images_kwargs"]
                nested = processor.prepare_inputs_layout(images=[image])[0]
                made, [text] = processor._process_images(nested, **options)
            unused = processor.unused_input_names
            inputs = {name: self._narrowed(name, value) for name, value in made.items() if name not in unused}
            found.append(ProcessedImage(text, inputs))
        return found

    def num_image_tokens(self, image: ProcessedImage) -> int:
        """Return the tokens of an image that its vectors replace."""
        token = self._processor.tokenizer.convert_ids_to_tokens(self.image_id)
        return image.text.count(token) if isinstance(token, str) else 0

    def kinds(self, ids: Sequence[int]) -> list[int]:
        """Return the kind of each token: 0 for a text, 1 for an image, 2 for a video."""
        [kinds] = self._processor.create_mm_token_type_ids([list(ids)])
        # Some count the tokens around an image too.
        replaced = self._replaced_ids
        return [int(kind) if token in replaced else 0 for token, kind in zip(ids, kinds, strict=True)]

    def expand(self, text: str, images: Sequence[ProcessedImage]) -> str:
        """Return a prompt with its placeholders replaced, one for each image."""
        [expanded], _ = self._processor.get_text_with_replacements([text], [each.text for each in images])
        return str(expanded)

    def with_positions(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs of the model's own pass, with `position_ids` where the model computes them of its images.

        `inputs`: with `input_ids`, int64 [1, tokens].
        """
        own = {name: value for name, value in inputs.items() if name not in _DROPPED}
        if not self._has_positions:
            return own
        ids = inputs["input_ids"]
        if self._reads_types and "mm_token_type_ids" not in own:  # of images that were processed one by one
            types = self._processor.create_mm_token_type_ids(ids.tolist())
            own["mm_token_type_ids"] = torch.tensor(types)
        with self._lock:
            options = {**own, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
            positions = self._whole._prepare_position_ids_for_generation(ids, options)
        return own | {"position_ids": positions}

    def positions(self, inputs: Mapping[str, Any]) -> Positions | None:
        """Return the positions of a prompt, int64 [sections, tokens]; None: of each token its index."""
        found = self.with_positions(inputs).get("position_ids")
        if found is None:
            return None
        rows: Positions = found[:, 0].numpy() if found.ndim == 3 else found.numpy()
        # The first of four sections counts tokens, for masks.
        return rows[1:] if len(rows) == 4 else rows

    def _narrowed(self, name: str, value: Any) -> Any:
        is_floating = isinstance(value, torch.Tensor) and value.is_floating_point() and name not in _NOT_NARROWED
        return value.to(self._dtype) if is_floating else value


def _metadata_of(size: VideoSize) -> VideoMetadata:
    return VideoMetadata(size.num_frames, size.fps, size.width, size.height, size.seconds, "pyav")
