"""The bodies of the OpenAI API as the OpenAPI document shows them; a request itself is read by the route's own file."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Question(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str = Field(description="Which model: its name, as GET /v1/models lists it.")
    priority: int = Field(5, ge=1, le=9, description="Order in the queue: 1 is first; a request that waits moves up.")
    timeout_ms: int | None = Field(None, ge=1, description="Deadline for the whole request.")
    user: str | None = Field(None, description="Taken, and without effect.")


class _GenerationQuestion(_Question):
    max_tokens: int | None = Field(None, ge=1, description="How many tokens to write at most.")
    min_tokens: int = Field(0, ge=0, description="Nothing ends a text before this many tokens.")
    temperature: float | None = Field(None, ge=0, description="0: greedy. Default: the model's own, else 1.")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, description="0 or -1: all.")
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = None
    frequency_penalty: float = Field(0, ge=-2, le=2)
    presence_penalty: float = Field(0, ge=-2, le=2)
    logit_bias: dict[str, float] | None = Field(None, description="Token id → what is added to its logit.")
    seed: int | None = Field(None, ge=0, description="The same seed gives the same text, whatever the neighbours.")
    n: int = Field(1, ge=1, description="How many texts for each prompt.")
    stop: str | list[str] | None = Field(None, description="Where a text ends, without it.")
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    stream: bool = Field(False, description="Server-sent events, the last of them [DONE].")
    stream_options: dict[str, bool] | None = Field(None, description='{"include_usage": true}: before [DONE].')
    response_format: dict[str, Any] | None = Field(
        None,
        description='What the text has to be: {"type": "json_object"}, or {"type": "json_schema", "json_schema": '
        '{"name", "schema"}}.',
    )
    regex: str | None = Field(None, description="What the text has to be: a pattern.")
    choice: list[str] | None = Field(None, description="What the text has to be: one of these.")
    json_schema: dict[str, Any] | bool | None = Field(None, description="What the text has to be: JSON of this schema.")
    structured_outputs: dict[str, Any] | None = Field(
        None, description="vLLM's way to say the same: one of regex, choice, json, json_object."
    )
    safety_identifier: str | None = Field(None, description="Taken, and without effect.")
    prompt_cache_key: str | None = Field(None, description="Taken, and without effect.")
    metadata: dict[str, str] | None = Field(None, description="Taken, and without effect.")


class CompletionsRequest(_GenerationQuestion):
    """Prompts to be continued."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="A text, token ids, or a list of either.", examples=["Once upon a time"]
    )
    max_tokens: int | None = Field(16, ge=1, description="How many tokens to write at most.")
    logprobs: int | None = Field(
        None, ge=0, le=5, description="Log probabilities of each token and of so many of the likeliest."
    )


class ChatMessage(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="forbid")

    role: str = Field(description="As the model's chat template knows it; developer is read as system.")
    content: str | list[dict[str, str]] = Field(description='A text, or parts {"type": "text", "text"}.')


class ChatRequest(_GenerationQuestion):
    """A conversation to be answered."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = Field(
        None, ge=1, description="How many tokens to write at most; default: the rest of the model's context."
    )
    logprobs: bool = Field(False, description="Log probabilities of each token.")
    top_logprobs: int | None = Field(None, ge=0, le=20, description="And of so many of the likeliest.")


class CompletionUsage(BaseModel):
    """Tokens read, `prompt_tokens_details.cached_tokens` of them known already, and tokens written."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class _GenerationAnswer(BaseModel):
    id: str
    created: int = Field(description="Unix time.")
    model: str
    choices: list[dict[str, Any]] = Field(description="As OpenAI's, in order of their index.")
    usage: CompletionUsage


class CompletionsResponse(_GenerationAnswer):
    """Each choice has `text`, `finish_reason` and, where they were asked for, `logprobs`."""

    object: Literal["text_completion"]


class ChatResponse(_GenerationAnswer):
    """Each choice has `message`, `finish_reason` and, where they were asked for, `logprobs`."""

    object: Literal["chat.completion"]


class EmbeddingsRequest(_Question):
    """Texts to be embedded, by any embed model of either framework."""

    input: str | list[str]
    encoding_format: Literal["float", "base64"] = Field("float", description="base64: of float32, little-endian.")
    dimensions: int | None = Field(
        None, ge=1, description="Cuts the vectors to this size and normalises them anew, where the model allows it."
    )
    truncate: bool = Field(True, description="Cut over-long texts at the model's limit.")


class TokensRead(BaseModel):
    """How many tokens the model has read."""

    prompt_tokens: int
    total_tokens: int


class Embedding(BaseModel):
    """The vector of one text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsResponse(BaseModel):
    """The vectors, in the order of the texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: TokensRead


class RerankDocument(BaseModel):
    """One document as an object."""

    text: str


class RerankRequest(_Question):
    """Documents to be ranked by how well they suit a query."""

    query: str
    documents: list[str | RerankDocument]
    top_n: int | None = Field(None, ge=1, description="Only so many of the best; default all.")
    return_documents: bool = Field(False, description="Whether the answer repeats the documents.")
    truncate: bool = Field(True, description="Cut over-long texts at the model's limit.")


class RankedDocument(BaseModel):
    """One document's place."""

    index: int = Field(description="Its place in the question.")
    relevance_score: float
    document: RerankDocument | None = None


class RerankResponse(BaseModel):
    """The documents by falling score."""

    id: str
    model: str
    usage: TokensRead
    results: list[RankedDocument]


class ScoreRequest(_Question):
    """Pairs of texts to be scored: a text with each of several, or several with as many others."""

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = Field(None, description="Another name of text_1.")
    documents: str | list[str] | None = Field(None, description="Another name of text_2.")
    truncate: bool = Field(True, description="Cut over-long texts at the model's limit.")


class PairScore(BaseModel):
    """The score of one pair."""

    index: int
    object: Literal["score"]
    score: float


class ScoreResponse(BaseModel):
    """The scores, in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: int = Field(description="Unix time.")
    model: str
    data: list[PairScore]
    usage: TokensRead


class _TokensQuestion(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str = Field(description="Which model: its name, as GET /v1/models lists it.")
    priority: int = Field(5, ge=1, le=9, description="Taken, and without effect: nothing waits.")
    timeout_ms: int | None = Field(None, ge=1, description="Deadline for the whole request.")


class TokenizeRequest(_TokensQuestion):
    """A text, or a conversation by the model's chat template."""

    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = Field(True, description="Those that the model's files put around a prompt.")
    return_token_strs: bool = Field(False, description="Each token's own text too.")


class TokenizeResponse(BaseModel):
    """The tokens, and how many of them the model reads at most."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(_TokensQuestion):
    """Token ids."""

    tokens: list[int]


class DetokenizeResponse(BaseModel):
    """Their text."""

    prompt: str


class OpenAiErrorDetail(BaseModel):
    """`code` is one of those of the native API; `param` the field that it concerns."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAiErrorResponse(BaseModel):
    """The body of every answer below /v1 with a status of 400 and above."""

    error: OpenAiErrorDetail
