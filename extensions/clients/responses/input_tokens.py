"""/v1/responses/input_tokens: count the tokens of a conversation, as /v1/responses would read it."""

import orjson

from app.protocols.openai.codec import OpenAiCodec, OpenAiRequest
from app.protocols.openai.field_policy import INPUT_TOKENS
from app.protocols.shared.chat_turns import generation_of
from app.protocols.shared.codec import AnswerContext
from extensions.clients.responses.conversation import (
    check_fields,
    conversation_of,
    ignored_fields,
    rename_field,
    tool_use_of,
)
from extensions.clients.responses.requests import InputTokensRequest
from frameworks.core.errors import InvalidInput
from frameworks.text.tokens import TokenizeAnswer, TokenizeRequest
from frameworks.types import ModelSpec


def _build(body: InputTokensRequest, spec: ModelSpec) -> TokenizeRequest:
    generation = generation_of(spec)
    if body.input is None and body.instructions is None:
        raise InvalidInput("input", "expected a string or items, got nothing; send input, instructions or both")
    return TokenizeRequest(conversation_of(body, tool_use_of(body, generation), generation))


def _write(decoded: OpenAiRequest, answer: TokenizeAnswer, context: AnswerContext) -> bytes:
    return orjson.dumps({"object": "response.input_tokens", "input_tokens": len(answer.token_ids)})


INPUT_TOKENS_CODEC = OpenAiCodec(
    "/v1/responses/input_tokens", ("generate",), InputTokensRequest, _build, _write, INPUT_TOKENS,
    rename=rename_field, check=check_fields, ignored=ignored_fields,
)  # fmt: skip
