"""Conversations with images: the texts of transformers' `generate`, and those of a served model."""

import base64
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from frameworks.generation.sequences import SequenceRequest
from frameworks.generation.types import Conversation, Message, MessageImage
from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.pytorch.generation.vision.processor_loading import load_processor
from frameworks.tasks.architectures import architecture_of
from tests.frameworks.pytorch.generation.generating import load_generating, request, stepped

TOKENS = 8
SIZES = ((48, 32), (30, 50), (64, 64))


def image(number: int, size: tuple[int, int] = SIZES[0]) -> bytes:
    """Return a PNG file of random pixels. `size`: width and height."""
    pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


IMAGES = tuple(image(number, size) for number, size in enumerate(SIZES))


def conversation(files: Iterable[bytes], text: str = " tell me") -> Conversation:
    """Return a message with a text after each image."""
    content, images = "", []
    for number, data in enumerate(files):
        images.append(MessageImage(data, len(content), f"messages[0].content[{2 * number}]"))
        content += f"one {number}"
    return Conversation((Message("user", content + text, images=tuple(images)),))


class Reference:
    """transformers' own model and processor of a folder."""

    def __init__(self, folder: Path) -> None:
        architecture: Any = getattr(transformers, architecture_of(folder))
        self.model = architecture.from_pretrained(folder, dtype=torch.float32)
        self._processor = load_processor(folder)
        # transformers does not give some processors the template of their folder.
        self._template = (folder / "chat_template.jinja").read_text(encoding="utf-8")

    def inputs(self, talk: Conversation) -> Any:
        """Return what the processor makes of a conversation of one message."""
        [message] = talk.messages
        parts: list[dict[str, Any]] = []
        end = 0
        for each in message.images:
            parts.append({"type": "text", "text": message.content[end : each.at]})
            parts.append({"type": "image", "image": Image.open(io.BytesIO(each.data))})
            end = each.at
        parts.append({"type": "text", "text": message.content[end:]})
        kinds = {"return_mm_token_type_ids": True} if self.model.config.model_type == "cosmos3_edge" else {}
        return self._processor.apply_chat_template(
            [{"role": message.role, "content": [part for part in parts if part.get("text") != ""]}],
            chat_template=self._template,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            add_generation_prompt=True,
            processor_kwargs=kinds,
        )

    def text(self, talk: Conversation, tokens: int = TOKENS) -> tuple[list[int], list[int]]:
        """Return the token ids of the prompt, and of the greedy text."""
        # Llama 4 has pixels of bfloat16.
        inputs = self.inputs(talk).to(torch.float32)
        length = inputs["input_ids"].shape[1]
        ids = self.model.generate(**inputs, max_new_tokens=tokens, do_sample=False)[0].tolist()
        return ids[:length], ids[length:]


def sequence(model: GeneratingModel, number: int, talk: Conversation, **more: Any) -> SequenceRequest:
    """Return the request of a conversation, prepared as the engine does it."""
    spec = model.spec.generation
    assert spec is not None
    if not talk.images:
        ids, media = list(model.tokenizer.encode(talk)), None
    else:
        assert model.image_prompts is not None
        most = spec.max_context_tokens - 1
        prompts = model.image_prompts
        ids, media = prompts.encode(talk, model.tokenizer.limit(most), most, prompts.select(talk))
    stops = {"stop_token_ids": spec.eos_token_ids, "media": media} | more
    return request(number, ids, more.pop("max_tokens", TOKENS), **stops)


def texts_of(model: GeneratingModel, requests: Iterable[SequenceRequest]) -> dict[int, list[int]]:
    """Return the tokens of each sequence, all of which run together."""
    found: dict[int, list[int]] = {}
    for each in requests:
        found[each.sequence_id] = []
        model.add(each)
    while model.has_work:
        result = stepped(model)
        for _, error in result.failed:
            raise error
        for token in result.tokens:
            found[token.sequence_id].append(token.token_id)
    return found


def compare(folder: Path, counts: Sequence[int], original: Path | None = None) -> str | None:
    """Check that greedy texts with so many images each equal those of `generate`, alone and among 16 others with cached
    prefixes. Return why the model runs with transformers' own caches; None: it does not. `original`: the folder of
    transformers' model; None: the same.
    """
    reference = Reference(original or folder)
    cache_dir = None if original is None else original.parent
    model = load_generating(folder, kv_cache_bytes=1 << 24, cache_dir=cache_dir)
    talks = [conversation(IMAGES[:count]) for count in counts]
    expected = [reference.text(talk) for talk in talks]
    alone = []
    for number, (talk, (prompt_ids, _)) in enumerate(zip(talks, expected, strict=True)):
        own = sequence(model, number, talk)
        assert list(own.prompt_ids) == prompt_ids or max(prompt_ids) >= model.spec.generation.vocabulary_size
        alone.append(texts_of(model, [own])[number])
    assert alone == [text for _, text in expected]
    requests = [sequence(model, number, talks[number % len(talks)]) for number in range(16)]
    together = texts_of(model, requests)
    assert together == {number: expected[number % len(talks)][1] for number in range(16)}
    reason: str | None = model.spec.generation.unpaged_because
    model.close()
    return reason
