"""Conversations with videos: the texts of transformers' `generate`, and those of a served model."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers.video_utils import VideoMetadata

from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Conversation, Message, MessageImage
from frameworks.media.video import decode_frames
from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.pytorch.generation.vision.processor_loading import load_processor
from tests.frameworks.pytorch.generation.generating import load_generating
from tests.frameworks.pytorch.generation.vision.seeing import IMAGES, TOKENS, Reference, sequence, texts_of
from tests.support.media import encoded_video, moving_square
from tests.support.models.text_files import write_json

_FPS = 10
_FRAMES = (36, 48)
_SIZE = 32, 48
_EVEN_FRAMES = 32
"""Of a processor that samples none: the frames that a user asks transformers for."""
_TIE = 2e-3
"""Largest difference of the two best logits, relative to their spread, that another order of sums may turn over."""
_SHARED = ("size", "crop_size", "patch_size", "merge_size")
"""Settings that a processor of videos has in common with that of images."""
VIDEOS = tuple(encoded_video(moving_square(count, *_SIZE), rate=_FPS) for count in _FRAMES)


def conversation(*files: tuple[str, bytes]) -> Conversation:
    """Return a message with a text after each file. `files`: kind and content."""
    content, found = "", []
    for number, (kind, data) in enumerate(files):
        found.append(MessageImage(data, len(content), f"messages[0].content[{number}]", is_video=kind == "video"))
        content += f"one {number}"
    return Conversation((Message("user", content, images=tuple(found)),))


TALKS = (
    conversation(("video", VIDEOS[0])),
    conversation(("video", VIDEOS[1]), ("video", VIDEOS[0])),
    conversation(("image", IMAGES[0]), ("video", VIDEOS[0])),
)
"""A video, two of other lengths, and an image before a video."""


class VideoReference(Reference):
    """transformers' own model and processor, whose processor samples the frames of whole videos."""

    @property
    def tokenizer(self) -> Any:
        return self._processor.tokenizer

    def settled(self, talk: Conversation) -> list[int]:
        """Return the greedy text up to the first token that another one equals nearly."""
        inputs = self.inputs(talk).to(torch.float32)
        output = self.model.generate(
            **inputs, max_new_tokens=TOKENS, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        logits = torch.cat(output.logits)
        best = logits.topk(2).values
        is_tie = best[:, 0] - best[:, 1] < _TIE * logits.std(1)
        count = int(is_tie.int().argmax()) if is_tie.any() else len(logits)
        ids: list[int] = output.sequences[0, inputs["input_ids"].shape[1] :][:count].tolist()
        return ids

    def inputs(self, talk: Conversation) -> Any:
        """Return what the processor makes of a conversation of one message."""
        [message] = talk.messages
        parts: list[dict[str, Any]] = []
        metadata = []
        end = 0
        for each in message.images:
            if message.content[end : each.at]:
                parts.append({"type": "text", "text": message.content[end : each.at]})
            if each.is_video:
                count = _FRAMES[VIDEOS.index(each.data)]
                parts.append({"type": "video", "video": decode_frames(each.data, range(count), "video")})
                metadata.append(VideoMetadata(count, _FPS, *_SIZE[::-1], count / _FPS))
            else:
                parts.append({"type": "image", "image": Image.open(io.BytesIO(each.data))})
            end = each.at
        parts.append({"type": "text", "text": message.content[end:]})
        options: dict[str, Any] = {"video_metadata": metadata, "return_metadata": True}
        own = self._processor.video_processor
        if not own.do_sample_frames and own.fps is None and own.num_frames is None:
            options |= {"do_sample_frames": True, "num_frames": _EVEN_FRAMES}
        if self.model.config.model_type == "cosmos3_edge":
            options["return_mm_token_type_ids"] = True
        inputs = self._processor.apply_chat_template(
            [{"role": message.role, "content": parts}],
            chat_template=self._template,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            add_generation_prompt=True,
            processor_kwargs=options,
        )
        inputs.pop("video_metadata", None)
        return inputs


def show_videos(folder: Path) -> None:
    """Let the chat template of a folder write a video as it writes an image, and its processor of videos make patches
    of the size of the model.
    """
    config = folder / "processor_config.json"
    settings = json.loads(config.read_text(encoding="utf-8"))
    own, of_images = settings.get("video_processor"), settings.get("image_processor", {})
    if own is not None:
        own |= {name: of_images[name] for name in _SHARED if name in of_images}
        write_json(config, settings)
    processor = load_processor(folder)
    image, video = getattr(processor, "image_token", None), getattr(processor, "video_token", None)
    path = folder / "chat_template.jinja"
    template = path.read_text(encoding="utf-8")
    found = re.search(r"if part\['type'\] == 'image' %\}(.*?)\{% (?=el)", template, re.DOTALL)
    if found is None or image is None or video is None:
        return
    shown = f"{{% elif part['type'] == 'video' %}}{found[1].replace(image, video).replace('of_image', 'of_video')}"
    at = found.start() + len(found[0].removesuffix("{% "))
    path.write_text(template[:at] + shown + template[at:], encoding="utf-8")


def text_of(folder: Path) -> str:
    """Return the greedy text of `generate` after the first conversation. Its chat template shows videos."""
    reference = VideoReference(folder)
    return str(reference.tokenizer.decode(reference.text(TALKS[0])[1], skip_special_tokens=True))


def compare_videos(folder: Path) -> str | None:
    """Check that greedy texts after videos equal those of `generate`, alone and among others with cached prefixes.
    Return why the model reads no videos; None: it does.
    """
    show_videos(folder)
    model = load_generating(folder, kv_cache_bytes=1 << 26)
    try:
        assert model.image_prompts is not None
        reason: str | None = model.image_prompts.bounds.no_videos_because
        if reason is None:
            _compare(model, VideoReference(folder))
        return reason
    finally:
        model.close()


def _compare(model: GeneratingModel, reference: VideoReference) -> None:
    expected, talks = [], []
    for talk in TALKS:
        try:
            expected.append(reference.settled(talk))
            talks.append(talk)
        except ValueError:
            # GLM and SmolVLM mix up images and videos, and Molmo 2 reads one video.
            assert talk is not TALKS[0]
            with pytest.raises(InvalidInput, match=r"(does not read both|the model's processor reads, got an error)"):
                sequence(model, 0, talk)
    assert all(expected)
    requests = [sequence(model, number, talks[number % len(talks)]) for number in range(2 * len(talks))]
    alone = [texts_of(model, [each])[each.sequence_id] for each in requests[: len(talks)]]
    together = texts_of(model, requests)
    for number, text in enumerate([*alone, *together.values()]):
        settled = expected[number % len(talks)]
        assert text[: len(settled)] == settled
