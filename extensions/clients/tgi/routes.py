"""The routes of Text Generation Inference, with their descriptions for OpenAPI."""

from typing import Literal

from pydantic import BaseModel, Field, RootModel

from app.protocols.shared.bodies import ResponseBody
from app.protocols.shared.routes import Route, RouteDescription
from extensions.clients.tgi.generate import GENERATE_CODEC, ROOT_CODEC, STREAM_CODEC, TgiCodec


class TgiToken(ResponseBody):
    """A token. `special`: it is no part of the text."""

    id: int
    text: str
    logprob: float | None = Field(description="null for the first token of a prompt.")
    special: bool


class TgiDetails(ResponseBody):
    """The tokens of a text, and why it ended."""

    finish_reason: Literal["length", "eos_token", "stop_sequence"]
    generated_tokens: int
    seed: int | None
    prefill: list[TgiToken] = Field(description="Tokens of the prompt, with decoder_input_details.")
    tokens: list[TgiToken]
    top_tokens: list[list[TgiToken]] | None = Field(None, description="With top_n_tokens.")


class TgiText(ResponseBody):
    """A generated text."""

    generated_text: str
    details: TgiDetails | None = None


class TgiTexts(RootModel[list[TgiText]]):
    """The generated text of POST /."""


class TgiErrorResponse(ResponseBody):
    """The body of every response of these routes with a status of 400 or above."""

    error: str
    error_type: Literal["validation", "overloaded", "generation"]


def _describe(codec: TgiCodec, summary: str, response: type[BaseModel]) -> RouteDescription:
    streams = codec.stream is not None
    return RouteDescription("tgi", summary, codec.body, response, TgiErrorResponse, streams)


_ROOT = _describe(ROOT_CODEC, "Continue a text", TgiTexts)

ROUTES = (
    # Members that only texts to continue have.
    *(Route("/", ROOT_CODEC, _ROOT, frozenset({"GET", "HEAD"}), field=name) for name in ("stream", "max_new_tokens")),
    Route("/generate", GENERATE_CODEC, _describe(GENERATE_CODEC, "Continue a text", TgiText)),
    Route("/generate_stream", STREAM_CODEC, _describe(STREAM_CODEC, "Continue a text as a stream", TgiText)),
)
"""Those with a `field` share the path with routes of Text Embeddings Inference, which come first in the table."""
