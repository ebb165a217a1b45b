"""The routes of the OpenAI API, with their descriptions for OpenAPI."""

from pydantic import BaseModel

from app.protocols.openai import responses
from app.protocols.openai.chat import CHAT_CODEC
from app.protocols.openai.codec import OpenAiCodec
from app.protocols.openai.completions import COMPLETIONS_CODEC
from app.protocols.openai.embeddings import EMBEDDINGS_CODEC
from app.protocols.openai.scoring import RERANK_CODEC, SCORE_CODEC
from app.protocols.openai.tokens import DETOKENIZE_CODEC, TOKENIZE_CODEC
from app.protocols.routes import Route, RouteDescription


def _route(codec: OpenAiCodec, summary: str, response: type[BaseModel]) -> Route:
    streams = codec.stream is not None
    text = RouteDescription("openai", summary, codec.body, response, responses.OpenAiErrorResponse, streams)
    return Route(codec.path, codec, text)


ROUTES = (
    _route(COMPLETIONS_CODEC, "Continue prompts", responses.CompletionsResponse),
    _route(CHAT_CODEC, "Answer a conversation", responses.ChatResponse),
    _route(EMBEDDINGS_CODEC, "Embed texts", responses.EmbeddingsResponse),
    _route(RERANK_CODEC, "Rank documents by a query", responses.RerankResponse),
    _route(SCORE_CODEC, "Score pairs of texts", responses.ScoreResponse),
    _route(TOKENIZE_CODEC, "Text to tokens", responses.TokenizeResponse),
    _route(DETOKENIZE_CODEC, "Tokens to text", responses.DetokenizeResponse),
)
