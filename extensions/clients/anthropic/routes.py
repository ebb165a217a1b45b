"""The routes of Anthropic's API, with their descriptions for OpenAPI."""

from typing import Any, Literal

from pydantic import Field

from app.protocols.shared.bodies import ResponseBody
from app.protocols.shared.routes import body_route
from extensions.clients.anthropic.messages import COUNT_TOKENS_CODEC, MESSAGES_CODEC


class MessageUsage(ResponseBody):
    """Tokens of the prompt that were computed, those found in the cache, and generated tokens."""

    input_tokens: int
    cache_creation_input_tokens: int = Field(description="0: every prompt is cached without being asked.")
    cache_read_input_tokens: int
    output_tokens: int


class MessageResponse(ResponseBody):
    """A response of the model. `content`: blocks of text, thinking and tool calls."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]] = Field(description="Blocks: `text`, `thinking`, `tool_use`.")
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None = Field(description="The stop sequence that ended the text.")
    usage: MessageUsage


class CountTokensResponse(ResponseBody):
    """The number of tokens of the prompt."""

    input_tokens: int


class AnthropicErrorResponse(ResponseBody):
    """The body of every response of these routes with a status of 400 or above."""

    type: Literal["error"]
    error: dict[str, str] = Field(description="`type` and `message`.")
    request_id: str


ROUTES = tuple(
    body_route(codec, "anthropic", summary, response, AnthropicErrorResponse)
    for codec, summary, response in (
        (MESSAGES_CODEC, "Answer a conversation", MessageResponse),
        (COUNT_TOKENS_CODEC, "Count the tokens of a conversation", CountTokensResponse),
    )
)
