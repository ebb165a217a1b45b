"""The routes of the OpenAI API, with their descriptions for OpenAPI."""

from dataclasses import replace

from pydantic import BaseModel

from app.protocols.openai import responses
from app.protocols.openai.audio.speech import MEDIA_TYPES, SPEECH_CODEC
from app.protocols.openai.audio.transcriptions import TRANSCRIPTIONS_CODEC, TRANSLATIONS_CODEC
from app.protocols.openai.chat import CHAT_CODEC
from app.protocols.openai.classify import CLASSIFY_CODEC, POOLING_CODEC
from app.protocols.openai.codec import OpenAiCodec
from app.protocols.openai.completions import COMPLETIONS_CODEC
from app.protocols.openai.embeddings import EMBEDDINGS_CODEC
from app.protocols.openai.scoring import RERANK_CODEC, SCORE_CODEC
from app.protocols.openai.tokens import DETOKENIZE_CODEC, TOKENIZE_CODEC
from app.protocols.shared.routes import Route, RouteDescription, body_route


def openai_route(codec: OpenAiCodec, summary: str, response: type[BaseModel], path: str | None = None) -> Route:
    """Return a route whose errors have OpenAI's form. `path`: another one than the codec's."""
    codec = codec if path is None else replace(codec, path=path)
    return body_route(codec, "openai", summary, response, responses.OpenAiErrorResponse)


def _with_files(route: Route, media_types: tuple[str, ...]) -> Route:
    return route._replace(description=route.description._replace(files=media_types, is_file=True))


ROUTES = (
    openai_route(COMPLETIONS_CODEC, "Continue prompts", responses.CompletionsResponse),
    openai_route(CHAT_CODEC, "Answer a conversation", responses.ChatResponse),
    *(
        openai_route(codec, summary, response, path)
        for codec, summary, response in (
            (EMBEDDINGS_CODEC, "Embed texts", responses.EmbeddingsResponse),
            (RERANK_CODEC, "Rank documents by a query", responses.RerankResponse),
            (SCORE_CODEC, "Score pairs of texts", responses.ScoreResponse),
            (CLASSIFY_CODEC, "Classify texts", responses.ClassifyResponse),
            (TOKENIZE_CODEC, "Text to tokens", responses.TokenizeResponse),
            (DETOKENIZE_CODEC, "Tokens to text", responses.DetokenizeResponse),
        )
        # vLLM and Infinity have these routes at the root too.
        for path in (None, codec.path.removeprefix("/v1"))
    ),
    *(
        Route(
            codec.path,
            codec,
            RouteDescription(
                "openai",
                summary,
                codec.body,
                responses.TranscriptionResponse,
                responses.OpenAiErrorResponse,
                is_form=True,
                texts=("text/plain", "text/vtt"),
            ),
        )
        for codec, summary in (
            (TRANSCRIPTIONS_CODEC, "Speech to text"),
            (TRANSLATIONS_CODEC, "Speech to text in English"),
        )
    ),
    openai_route(POOLING_CODEC, "Run a text model", responses.PoolingResponse),
    _with_files(openai_route(SPEECH_CODEC, "Speak a text", responses.SpeechEvent), MEDIA_TYPES),
)
