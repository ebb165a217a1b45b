"""What the OpenAPI document says of Triton's generate extension; requests are read by generate_options."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class GenerateTextRequest(BaseModel):
    """Options stand beside `text_input` or in `parameters`, under the names that Triton's backends for language models
    have for them. An unknown one changes nothing.
    """

    model_config = ConfigDict(extra="allow")

    text_input: str = Field(description="The text to go on from.", examples=["The function returns"])
    id: str | None = Field(None, description="Repeated in the answer.")
    parameters: dict[str, Any] | None = Field(
        None, description="More options.", examples=[{"temperature": 0, "max_tokens": 20}]
    )
    max_tokens: int = Field(20, ge=1, description="The longest text.")
    min_tokens: int = Field(0, ge=0, description="No end of text before so many tokens. Also min_length.")
    temperature: float | None = Field(
        None, ge=0, le=100, description="0: always the likeliest token. Default as the model's own files say, else 1."
    )
    top_p: float | None = Field(None, gt=0, le=1, description="Draw from the likeliest that together have this share.")
    top_k: int | None = Field(None, ge=-1, description="Draw from so many likeliest tokens; 0 or -1: all.")
    min_p: float | None = Field(None, ge=0, le=1, description="Draw from tokens with this share of the likeliest's.")
    repetition_penalty: float | None = Field(None, ge=0.01, le=100, description="Above 1: what has come comes less.")
    frequency_penalty: float = Field(0, ge=-2, le=2, description="Off a token's logit for each time it has come.")
    presence_penalty: float = Field(0, ge=-2, le=2, description="Off a token's logit when it has come.")
    logit_bias: dict[str, float] | None = Field(None, description="Token id → what is added to its logit.")
    seed: int | None = Field(None, ge=0, description="The same seed gives the same text. Also random_seed.")
    n: int = Field(1, ge=1, le=128, description="How many texts; of several the answer's fields are lists.")
    stop: str | list[str] | None = Field(None, description="The text ends before any of them. Also stop_words.")
    stop_token_ids: list[int] | None = Field(None, description="The text ends before any of them. Also end_id.")
    ignore_eos: bool = Field(False, description="The text goes on past the model's end of text.")
    stream: bool | None = Field(
        None,
        description="generate_stream: false puts the whole text into one event. generate: true is refused.",
    )
    exclude_input_in_output: bool = Field(True, description="generate: false puts text_input before the text.")
    return_log_probs: bool = Field(False, description="Adds output_log_probs and cum_log_probs, as TensorRT-LLM.")
    return_cumulative_logprob: bool = Field(False, description="Adds cumulative_logprob, as vLLM.")
    logprobs: int | None = Field(None, ge=0, le=20, description="How many likeliest tokens return_logprobs tells of.")
    return_logprobs: bool = Field(False, description="Adds logprobs, as vLLM: the JSON of them in a string.")
    structured_outputs: dict[str, Any] | str | None = Field(
        None, description="What the text has to be: an object with json, regex, choice or json_object, or its JSON."
    )
    priority: int = Field(0, ge=0, le=9, description="Order in the queue: 1 is first; 0 is the default, 5.")
    timeout: int | None = Field(None, ge=0, description="Microseconds until the deadline of the whole request.")


class GenerateTextResponse(BaseModel):
    """A whole answer, or an event of a stream: there `text_output` is the new piece, and the counts come at the end."""

    model_config = ConfigDict(protected_namespaces=())

    id: str | None = None
    model_name: str
    model_version: str
    text_output: str | list[str]
    finish_reason: str | list[str | None] | None = Field(None, description="stop or length.")
    num_input_tokens: int | None = None
    num_output_tokens: int | None = Field(None, description="Of all texts, their ends included.")
    done: bool | None = Field(None, description="Of a stream: whether this is its last event.")
    output_log_probs: list[Any] | None = None
    cum_log_probs: float | list[float] | None = None
    cumulative_logprob: float | list[float] | None = None
    logprobs: str | list[str] | None = None
