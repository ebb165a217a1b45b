"""The inference routes of Ollama's API, with their descriptions for OpenAPI."""

from typing import Any, Literal

from pydantic import Field

from app.protocols.shared.bodies import ResponseBody
from app.protocols.shared.routes import body_route
from extensions.clients.ollama.codec import EMBED_CODEC, EMBEDDINGS_CODEC
from extensions.clients.ollama.texts import CHAT_CODEC, GENERATE_CODEC


class OllamaEmbedResponse(ResponseBody):
    """The vectors, in the order of the texts."""

    model: str
    embeddings: list[list[float]]
    total_duration: int = Field(description="Nanoseconds.")
    load_duration: int
    prompt_eval_count: int = Field(description="Tokens of all texts.")


class OllamaEmbeddingsResponse(ResponseBody):
    """The vector of a text."""

    embedding: list[float]


class _OllamaText(ResponseBody):
    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length"]
    total_duration: int = Field(description="Nanoseconds.")
    load_duration: int = Field(description="Always 0: waiting for a load is part of the total.")
    prompt_eval_count: int
    prompt_eval_duration: int = Field(description="Nanoseconds to the first token; 0 without a stream.")
    eval_count: int
    eval_duration: int = Field(description="Nanoseconds from the first token; the total without a stream.")


class OllamaAnswerMessage(ResponseBody):
    """The answer. `tool_calls`: each with its arguments as an object."""

    role: Literal["assistant"]
    content: str
    thinking: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class OllamaChatResponse(_OllamaText):
    """The answer to a conversation. Lines of a stream before the last one have no counts."""

    message: OllamaAnswerMessage


class OllamaGenerateResponse(_OllamaText):
    """The answer to a prompt. Lines of a stream before the last one have no counts."""

    response: str
    thinking: str | None = None


class OllamaErrorResponse(ResponseBody):
    """The body of every response of these routes with a status of 400 or above."""

    error: str


ROUTES = tuple(
    body_route(codec, "ollama", summary, response, OllamaErrorResponse)
    for codec, summary, response in (
        (CHAT_CODEC, "Answer a conversation", OllamaChatResponse),
        (GENERATE_CODEC, "Answer a prompt", OllamaGenerateResponse),
        (EMBED_CODEC, "Embed texts", OllamaEmbedResponse),
        (EMBEDDINGS_CODEC, "Embed a text", OllamaEmbeddingsResponse),
    )
)
