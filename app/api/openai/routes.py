"""Which path of the OpenAI API is read and answered by what, and what the OpenAPI document says of it."""

from pydantic import BaseModel

from app.api.openai import schemas
from app.api.openai.chat import CHAT_FORMAT
from app.api.openai.completions import COMPLETIONS_FORMAT
from app.api.openai.embeddings import EMBEDDINGS_FORMAT
from app.api.openai.format import OpenAiFormat
from app.api.openai.scoring import RERANK_FORMAT, SCORE_FORMAT
from app.api.openai.tokens import DETOKENIZE_FORMAT, TOKENIZE_FORMAT
from app.api.routes import Route, RouteText


def _route(wire_format: OpenAiFormat, summary: str, question: type[BaseModel], answer: type[BaseModel]) -> Route:
    streams = wire_format.stream is not None
    text = RouteText("openai", summary, question, answer, schemas.OpenAiErrorResponse, streams)
    return Route(wire_format.path, wire_format, text)


ROUTES = (
    _route(COMPLETIONS_FORMAT, "Continue prompts", schemas.CompletionsRequest, schemas.CompletionsResponse),
    _route(CHAT_FORMAT, "Answer a conversation", schemas.ChatRequest, schemas.ChatResponse),
    _route(EMBEDDINGS_FORMAT, "Embed texts", schemas.EmbeddingsRequest, schemas.EmbeddingsResponse),
    _route(RERANK_FORMAT, "Rank documents by a query", schemas.RerankRequest, schemas.RerankResponse),
    _route(SCORE_FORMAT, "Score pairs of texts", schemas.ScoreRequest, schemas.ScoreResponse),
    _route(TOKENIZE_FORMAT, "Text to tokens", schemas.TokenizeRequest, schemas.TokenizeResponse),
    _route(DETOKENIZE_FORMAT, "Tokens to text", schemas.DetokenizeRequest, schemas.DetokenizeResponse),
)
