"""Prepare texts, images and conversations for models that embed what their chat template makes of them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.generation.types import Conversation, Message, MessageImage, PromptEnding
from frameworks.pytorch.encoders.seeing.items import PROBES, ContentTokenizer, item_of
from frameworks.pytorch.generation.prompts.tokenizer import HuggingFaceTokenizer
from frameworks.pytorch.generation.vision.file_bounds import check_images
from frameworks.pytorch.generation.vision.prompts import ImagePrompts, PromptForm
from frameworks.tasks.types import TaskItem
from frameworks.text.config import TextConfig
from frameworks.types import Truncation

_BEGINS = "add_generation_prompt"


class ConversationPrompts:
    """Implements ContentPrompts. A text or an image is a message of the user; the prompt of the files, or of the
    request, is the message of the system, as in sentence-transformers.
    """

    def __init__(
        self, prompts: ImagePrompts, renderer: HuggingFaceTokenizer, tokenizer: ContentTokenizer, config: TextConfig
    ) -> None:
        """`renderer`: has the chat template. `tokenizer`: bounds texts. Raises InvalidModel without a template."""
        if not prompts.has_template:
            raise InvalidModel(
                "modality_config: expected a chat template for messages, got none; add chat_template.jinja"
            )
        # The whole prompt is one run.
        prompts.form = PromptForm(is_whole=True)
        self._prompts = prompts
        self._renderer = renderer
        self.tokenizer = tokenizer
        self._instruction = config.prompt
        self._max_tokens = config.max_tokens
        self._limit = renderer.limit(config.max_tokens)
        self._ending, self._variables = _of_files(config.pair_messages.variables)

    def check(self, images: Sequence[MessageImage], field: str) -> None:
        """As ContentPrompts.check."""
        check_images(images, self._prompts.bounds, field)

    def of_text(self, text: str, field: str, truncate: Truncation, prompt: str | None) -> TaskItem:
        """As ContentPrompts.of_text."""
        part = self.tokenizer.part_of(text, field, truncate)
        try:
            inputs = self._text(part, prompt)
            if inputs["input_ids"].shape[1] > self._max_tokens:
                probes = [self._text(each, prompt)["input_ids"][0].tolist() for each in PROBES]
                inputs = self.tokenizer.cut(inputs, probes, field, truncate)
        except InvalidInput as error:
            raise InvalidInput(field, error.reason) from error
        return item_of(inputs)

    def of_image(self, image: MessageImage) -> TaskItem:
        """As ContentPrompts.of_image."""
        try:
            return self._item(self._asked((Message("user", "", images=(image,)),), None))
        except InvalidInput as error:
            raise InvalidInput(image.field, error.reason) from error

    def of_conversation(self, conversation: Conversation, ending: PromptEnding | None) -> TaskItem:
        """As ContentPrompts.of_conversation."""
        return self._item(self._asked(conversation.messages, None, ending))

    def _asked(
        self, messages: tuple[Message, ...], prompt: str | None, ending: PromptEnding | None = None
    ) -> Conversation:
        """Return the conversation that the template gets."""
        instruction = self._instruction if prompt is None else prompt
        if instruction and messages[0].role != "system":
            messages = (Message("system", instruction), *messages)
        return Conversation(messages, variables=self._variables, ending=ending or self._ending)

    def _text(self, text: str, prompt: str | None) -> dict[str, Any]:
        """Return the inputs of a text as a message."""
        rendered = self._prompts.render(self._asked((Message("user", text),), prompt))
        return _inputs(self._ids_of(rendered), {})

    def _item(self, conversation: Conversation) -> TaskItem:
        if conversation.has_images:
            ids, media = self._prompts.encode(conversation, self._limit, self._max_tokens)
            inputs = _inputs(ids, media.inputs)
        else:
            rendered = self._prompts.render(conversation)
            self._renderer.check_length(rendered, self._limit, "messages")
            inputs = _inputs(self._ids_of(rendered), {})
        num_tokens = int(inputs["input_ids"].shape[1])
        if num_tokens > self._max_tokens:
            raise InvalidInput(
                "messages",
                f"expected at most {self._max_tokens} tokens, the model's limit, got {num_tokens}; send less text, or "
                "smaller images",
            )
        return item_of(inputs)

    def _ids_of(self, rendered: str) -> list[int]:
        return self._renderer.ids_with_images(rendered, self._prompts.processing.adds_special_tokens(rendered))


def _inputs(ids: Sequence[int], of_images: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of the model's own pass."""
    input_ids = torch.tensor([ids])
    return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids), **of_images}


def _of_files(variables: Mapping[str, object]) -> tuple[PromptEnding, str]:
    """Return where a prompt ends, and the other variables of the template, as the model's files say."""
    others = {name: value for name, value in variables.items() if name != _BEGINS}
    return "response" if variables.get(_BEGINS) else "messages", json.dumps(others) if others else ""
