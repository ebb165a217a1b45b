"""The routes of Anthropic's API, with their descriptions for OpenAPI."""

from pydantic import BaseModel

from app.protocols.shared.routes import Route, RouteDescription
from extensions.clients.anthropic import responses
from extensions.clients.anthropic.codec import AnthropicCodec
from extensions.clients.anthropic.messages import COUNT_TOKENS_CODEC, MESSAGES_CODEC


def _route(codec: AnthropicCodec, summary: str, response: type[BaseModel]) -> Route:
    streams = codec.stream is not None
    text = RouteDescription("anthropic", summary, codec.body, response, responses.AnthropicErrorResponse, streams)
    return Route(codec.path, codec, text)


ROUTES = (
    _route(MESSAGES_CODEC, "Answer a conversation", responses.MessageResponse),
    _route(COUNT_TOKENS_CODEC, "Count the tokens of a conversation", responses.CountTokensResponse),
)
