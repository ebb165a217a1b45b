"""The routes of Text Generation Inference, with their descriptions for OpenAPI."""

from pydantic import BaseModel

from app.protocols.shared.routes import Route, RouteDescription
from extensions.clients.tgi import responses
from extensions.clients.tgi.codec import TgiCodec
from extensions.clients.tgi.generate import GENERATE_CODEC, ROOT_CODEC, STREAM_CODEC


def _describe(codec: TgiCodec, summary: str, response: type[BaseModel]) -> RouteDescription:
    streams = codec.stream is not None
    return RouteDescription("tgi", summary, codec.body, response, responses.TgiErrorResponse, streams)


_ROOT = _describe(ROOT_CODEC, "Continue a text", responses.TgiTexts)

ROUTES = (
    # Members that only texts to continue have.
    *(Route("/", ROOT_CODEC, _ROOT, frozenset({"GET", "HEAD"}), field=name) for name in ("stream", "max_new_tokens")),
    Route("/generate", GENERATE_CODEC, _describe(GENERATE_CODEC, "Continue a text", responses.TgiText)),
    Route("/generate_stream", STREAM_CODEC, _describe(STREAM_CODEC, "Continue a text as a stream", responses.TgiText)),
)
"""Those with a `field` share the path with routes of Text Embeddings Inference, which come first in the table."""
