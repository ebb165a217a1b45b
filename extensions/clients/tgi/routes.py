"""The routes of Text Generation Inference, with their descriptions for OpenAPI."""

from typing import Literal

from pydantic import BaseModel, Field, RootModel

from app.protocols.shared.bodies import ResponseBody
from app.protocols.shared.routes import Route, body_route
from extensions.clients.tgi.generate import GENERATE_CODEC, STREAM_CODEC, TgiCodec
from extensions.clients.tgi.root import ROOT_CODEC


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


def _route(codec: TgiCodec, summary: str, response: type[BaseModel]) -> Route:
    return body_route(codec, "tgi", summary, response, TgiErrorResponse)


_ROOT = _route(ROOT_CODEC, "Continue a text", TgiTexts)._replace(others=frozenset({"GET", "HEAD"}))

ROUTES = (
    # Members that only texts to continue have.
    *(_ROOT._replace(field=name) for name in ("stream", "max_new_tokens")),
    _route(GENERATE_CODEC, "Continue a text", TgiText),
    _route(STREAM_CODEC, "Continue a text as a stream", TgiText),
)
"""Those with a `field` share the path with routes of Text Embeddings Inference, which come first in the table."""
