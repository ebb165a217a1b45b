"""What `prompt` and `messages` ask of a model that generates text."""

from typing import Any

from app.protocols.constraint_fields import read_constraint
from app.protocols.generation_fields import (
    read_flag,
    read_messages,
    read_num_choices,
    read_sampling,
    read_stopping,
    read_top_logprobs,
)
from app.protocols.json_body import Document, Node, describe_value
from app.protocols.model_inputs import explain_expected_input
from frameworks.errors import InvalidInput
from frameworks.generation.types import GenerateRequest, GenerationSpec, Prompt
from frameworks.types import ModelSpec

DEFAULT_MAX_TOKENS = 256


def read_generation(
    document: Document, fields: dict[str, Node], spec: ModelSpec, question: str
) -> tuple[GenerateRequest, bool]:
    """The request, and whether it is answered piece by piece. Raises InvalidInput, UnknownField."""
    generation = spec.generation
    if generation is None:
        raise InvalidInput(question, explain_expected_input(spec))
    # What asks for a text is small; in Python's own values it is read as other protocols' questions are.
    options: dict[str, Any] = {name: document.python(node) for name, node in fields.items()}
    request = GenerateRequest(
        (_read_prompt(options[question], question, generation),),
        read_sampling(options, generation, read_top_logprobs(options)),
        read_stopping(options, generation, DEFAULT_MAX_TOKENS),
        read_constraint(options),
        read_num_choices(options),
    )
    return request, read_flag(options, "stream")


def _read_prompt(value: Any, question: str, generation: GenerationSpec) -> Prompt:
    if question == "messages":
        if not generation.has_chat_template:
            raise InvalidInput("messages", "this model has no chat template; send prompt, the text to go on from")
        return read_messages(value)
    if not isinstance(value, str):
        raise InvalidInput("prompt", f"is {describe_value(value)}; wants a string (a conversation goes in messages)")
    return value
