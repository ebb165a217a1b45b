"""The routes of OpenAI's Responses API, with their descriptions for OpenAPI."""

from typing import Any, Literal

from pydantic import Field

from app.protocols.openai.routes import openai_route
from app.protocols.shared.bodies import ResponseBody
from extensions.clients.responses.codec import INPUT_TOKENS_CODEC, RESPONSES_CODEC


class ResponseUsage(ResponseBody):
    """Tokens of the input and of the output; `reasoning_tokens` are part of the output."""

    input_tokens: int
    input_tokens_details: dict[str, int] = Field(description="`cached_tokens`: input tokens found in the cache.")
    output_tokens: int
    output_tokens_details: dict[str, int] = Field(description="`reasoning_tokens`")
    total_tokens: int


class ResponseObject(ResponseBody):
    """A response. It repeats the options of the request, with the values in effect."""

    id: str
    object: Literal["response"]
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    created_at: int = Field(description="Unix time in seconds.")
    completed_at: int | None
    model: str
    output: list[dict[str, Any]] = Field(description="Items of the types `reasoning`, `message` and `function_call`.")
    usage: ResponseUsage | None
    error: dict[str, str] | None = Field(description="`code` and `message`, if the status is `failed`.")
    incomplete_details: dict[str, str] | None = Field(description="`reason`, if the status is `incomplete`.")
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    reasoning: dict[str, str | None]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, str]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    background: Literal[False]
    max_tool_calls: None
    previous_response_id: None
    prompt_cache_key: str | None
    safety_identifier: str | None
    service_tier: Literal["default"]
    user: str | None


class InputTokens(ResponseBody):
    """The number of tokens of a conversation."""

    object: Literal["response.input_tokens"]
    input_tokens: int


ROUTES = (
    openai_route(RESPONSES_CODEC, "Answer a conversation with typed items", ResponseObject),
    openai_route(INPUT_TOKENS_CODEC, "Count the tokens of a conversation", InputTokens),
)
