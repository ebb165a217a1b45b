"""Response bodies of Text Generation Inference as OpenAPI shows them. The codecs write them without these classes."""

from typing import Literal

from pydantic import Field, RootModel

from app.protocols.shared.bodies import ResponseBody


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
