"""Describe how models that embed texts and images alike prepare them: a text, an image or a conversation to an item."""

from collections.abc import Sequence
from typing import Protocol

from frameworks.generation.types import Conversation, MessageImage, PromptEnding
from frameworks.tasks.types import TaskItem
from frameworks.types import Truncation


class ContentPrompts(Protocol):
    """The prompts of a model that embeds texts and images alike. Any thread may call it."""

    def check(self, images: Sequence[MessageImage], field: str) -> None:
        """Read the headers of the images of a request. `field`: of all images together.

        Raises InvalidInput beyond the bounds of the model.
        """
        ...

    def of_text(self, text: str, field: str, truncate: Truncation, prompt: str | None) -> TaskItem:
        """Return the item of a text. `prompt`: what is put before it; None: that of the model's files.

        Raises InvalidInput with this field, where the text is too long and `truncate` is False.
        """
        ...

    def of_image(self, image: MessageImage) -> TaskItem:
        """Return the item of an image that was checked. Raises InvalidInput."""
        ...

    def of_conversation(self, conversation: Conversation, ending: PromptEnding | None) -> TaskItem:
        """Return the item of a conversation whose images were checked; for a model whose spec has `messages`.

        Raises InvalidInput.
        """
        ...
