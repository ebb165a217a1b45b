"""The inference routes of Ollama's API, with their descriptions for OpenAPI."""

from app.protocols.shared.routes import Route, RouteDescription
from extensions.clients.ollama import responses
from extensions.clients.ollama.embed import EMBED_CODEC, EMBEDDINGS_CODEC
from extensions.clients.ollama.texts import CHAT_CODEC, GENERATE_CODEC

ROUTES = tuple(
    Route(
        codec.path,
        codec,
        RouteDescription(
            "ollama", summary, codec.body, response, responses.OllamaErrorResponse, codec.stream is not None
        ),
    )
    for codec, summary, response in (
        (CHAT_CODEC, "Answer a conversation", responses.OllamaChatResponse),
        (GENERATE_CODEC, "Answer a prompt", responses.OllamaGenerateResponse),
        (EMBED_CODEC, "Embed texts", responses.OllamaEmbedResponse),
        (EMBEDDINGS_CODEC, "Embed a text", responses.OllamaEmbeddingsResponse),
    )
)
