"""Read `prompt` and `messages` of an /infer body, for models that generate text."""

from typing import Any

from app.protocols.native.fields import DEFAULT_MAX_TOKENS, GENERATION_FIELDS, GenerationOptions
from app.protocols.shared.bodies import read_body
from app.protocols.shared.fields.constraints import to_constraint
from app.protocols.shared.fields.generation import Messages, num_top_logprobs, to_conversation, to_sampling, to_stopping
from app.protocols.shared.fields.model_inputs import explain_expected_input
from app.protocols.shared.json.body import Document, Node, describe_value
from frameworks.core.errors import InvalidInput
from frameworks.generation.types import GenerateRequest, GenerationSpec, Prompt
from frameworks.types import ModelSpec


class _MessagesRequest(GenerationOptions):
    messages: Messages


def read_generation(
    document: Document, fields: dict[str, Node], spec: ModelSpec, input_field: str
) -> tuple[GenerateRequest, bool]:
    """Read a request for text, and whether to stream the response. Raises InvalidInput, UnknownField."""
    generation = spec.generation
    if generation is None:
        raise InvalidInput(input_field, explain_expected_input(spec))
    options: dict[str, Any] = {name: document.python(fields[name]) for name in GENERATION_FIELDS.intersection(fields)}
    body: GenerationOptions
    prompt: Prompt
    if input_field == "messages":
        _check_chat_template(generation)
        conversation = read_body(_MessagesRequest, {**options, "messages": document.python(fields["messages"])})
        body, prompt = conversation, to_conversation(conversation.messages)
    else:
        prompt = _read_prompt(fields["prompt"])
        body = read_body(GenerationOptions, options)
    request = GenerateRequest(
        (prompt,),
        to_sampling(body, generation, num_top_logprobs(body.logprobs)),
        to_stopping(body, generation, DEFAULT_MAX_TOKENS),
        to_constraint(body),
        body.n or 1,
    )
    return request, bool(body.stream)


def _check_chat_template(generation: GenerationSpec) -> None:
    if not generation.has_chat_template:
        raise InvalidInput("messages", "expected a model with a chat template; send prompt, the text to continue")


def _read_prompt(value: Node) -> str:
    if not isinstance(value, str):
        raise InvalidInput("prompt", f"expected a string, got {describe_value(value)}; send a conversation in messages")
    return value
