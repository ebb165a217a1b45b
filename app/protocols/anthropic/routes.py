"""The routes of Anthropic's API, with their descriptions for OpenAPI."""

from pydantic import BaseModel

from app.protocols.anthropic import responses
from app.protocols.anthropic.codec import AnthropicCodec
from app.protocols.anthropic.messages import COUNT_TOKENS_CODEC, MESSAGES_CODEC
from app.protocols.routes import Route, RouteDescription


def _route(codec: AnthropicCodec, summary: str, response: type[BaseModel]) -> Route:
    streams = codec.stream is not None
    text = RouteDescription("anthropic", summary, codec.body, response, responses.AnthropicErrorResponse, streams)
    return Route(codec.path, codec, text)


ROUTES = (
    _route(MESSAGES_CODEC, "Answer a conversation", responses.MessageResponse),
    _route(COUNT_TOKENS_CODEC, "Count the tokens of a conversation", responses.CountTokensResponse),
)
