"""Which path of the OpenAI API is read and answered by what, and what the OpenAPI document says of it."""

from pydantic import BaseModel

from app.protocols.openai import schemas
from app.protocols.openai.chat import CHAT_FORMAT
from app.protocols.openai.codec import OpenAiCodec
from app.protocols.openai.completions import COMPLETIONS_FORMAT
from app.protocols.openai.embeddings import EMBEDDINGS_FORMAT
from app.protocols.openai.scoring import RERANK_FORMAT, SCORE_FORMAT
from app.protocols.openai.tokens import DETOKENIZE_FORMAT, TOKENIZE_FORMAT
from app.protocols.routes import Route, RouteDescription


def _route(codec: OpenAiCodec, summary: str, question: type[BaseModel], answer: type[BaseModel]) -> Route:
    streams = codec.stream is not None
    text = RouteDescription("openai", summary, question, answer, schemas.OpenAiErrorResponse, streams)
    return Route(codec.path, codec, text)


ROUTES = (
    _route(COMPLETIONS_FORMAT, "Continue prompts", schemas.CompletionsRequest, schemas.CompletionsResponse),
    _route(CHAT_FORMAT, "Answer a conversation", schemas.ChatRequest, schemas.ChatResponse),
    _route(EMBEDDINGS_FORMAT, "Embed texts", schemas.EmbeddingsRequest, schemas.EmbeddingsResponse),
    _route(RERANK_FORMAT, "Rank documents by a query", schemas.RerankRequest, schemas.RerankResponse),
    _route(SCORE_FORMAT, "Score pairs of texts", schemas.ScoreRequest, schemas.ScoreResponse),
    _route(TOKENIZE_FORMAT, "Text to tokens", schemas.TokenizeRequest, schemas.TokenizeResponse),
    _route(DETOKENIZE_FORMAT, "Tokens to text", schemas.DetokenizeRequest, schemas.DetokenizeResponse),
)
