"""The routes of OpenAI's Responses API, with their descriptions for OpenAPI."""

from app.protocols.openai.routes import openai_route
from extensions.clients.responses import schemas
from extensions.clients.responses.codec import RESPONSES_CODEC
from extensions.clients.responses.input_tokens import INPUT_TOKENS_CODEC

ROUTES = (
    openai_route(RESPONSES_CODEC, "Answer a conversation with typed items", schemas.ResponseObject),
    openai_route(INPUT_TOKENS_CODEC, "Count the tokens of a conversation", schemas.InputTokens),
)
