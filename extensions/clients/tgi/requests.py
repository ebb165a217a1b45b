"""Request bodies of Text Generation Inference. Each class validates its body, and OpenAPI shows its schema.

Not in these classes: the parameters that `codec.py` refuses.
"""

from typing import Annotated

from pydantic import ConfigDict, Field

from app.protocols.shared.bodies import Body, read_body
from app.protocols.shared.body_codec import RequestBody
from app.protocols.shared.fields.constraints import JsonGrammar, RegexGrammar
from app.protocols.shared.fields.generation import (
    MAX_STOPS,
    FrequencyPenalty,
    LanguageCode,
    MaxTokens,
    MinTokens,
    RepetitionPenalty,
    SearchFields,
    Seed,
    StopString,
    Stream,
    Temperature,
    TopK,
    TopLogprobs,
    TopP,
)


class TgiParameters(Body):
    """Options of a text."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_new_tokens": 20}]})

    max_new_tokens: MaxTokens = Field(None, description="Maximum number of generated tokens. Default: 100.")
    do_sample: bool | None = Field(
        None, description="Draw tokens. Default: if temperature, top_k or top_p is sent; else the most likely ones."
    )
    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    seed: Seed = None
    repetition_penalty: RepetitionPenalty = None
    frequency_penalty: FrequencyPenalty = None
    stop: Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True)] | None = Field(
        None, description="Strings that end a text; the text ends with them."
    )
    grammar: Annotated[JsonGrammar | RegexGrammar, Field(discriminator="type")] | None = Field(
        None, description="The form of the text.", examples=[{"type": "regex", "value": "[0-9]+"}]
    )
    return_full_text: bool | None = Field(False, description="Put the prompt before the text.")
    details: bool | None = Field(False, description="Report the tokens, with their log probabilities.")
    decoder_input_details: bool | None = Field(False, description="Report the tokens of the prompt in the details.")
    top_n_tokens: TopLogprobs = None


_NO_PARAMETERS = read_body(TgiParameters, {})


class TgiRequest(RequestBody):
    """A text to continue."""

    inputs: str = Field(examples=["Once upon a time"])
    parameters: TgiParameters | None = None

    @property
    def options(self) -> TgiParameters:
        """The parameters, or those of a request without any."""
        return _NO_PARAMETERS if self.parameters is None else self.parameters


class TgiWholeRequest(TgiRequest):
    """A text to continue, whole."""

    stream: bool | None = Field(False, description="Accepted without effect: the text is sent whole.")


class TgiStreamRequest(TgiRequest):
    """A text to continue, as a stream."""

    stream: bool | None = Field(True, description="Accepted without effect: the text is streamed.")

    @property
    def streams(self) -> bool:
        """True, as in TGI."""
        return True


class HubParameters(TgiParameters, SearchFields):
    """Options of a text that is continued, translated or summarized; those of `generate_parameters` too."""

    src_lang: LanguageCode = Field(None, description="As source_language.")
    tgt_lang: LanguageCode = Field(None, description="As target_language.")
    min_new_tokens: MinTokens = None
    max_length: MaxTokens = Field(
        None, description="Maximum number of tokens of a model with an encoder, with those that begin its texts."
    )
    min_length: MinTokens = Field(None, description="As max_length, the number before which a text does not end.")


_NO_HUB_PARAMETERS = read_body(HubParameters, {})


class TgiRootRequest(TgiRequest):
    """A text to continue, to translate or to summarize, whole or as a stream."""

    parameters: HubParameters | None = None
    stream: Stream = False

    @property
    def options(self) -> HubParameters:
        """As TgiRequest.options."""
        return _NO_HUB_PARAMETERS if self.parameters is None else self.parameters
