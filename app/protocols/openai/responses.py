"""Response bodies of the OpenAI API as OpenAPI shows them. The codecs write them without these classes."""

from typing import Any, Literal

from pydantic import Field

from app.protocols.openai.requests import RerankDocument
from app.protocols.shared.bodies import ResponseBody

_PREDICTION_TOKENS = (
    "`accepted_prediction_tokens`: generated tokens that speculation proposed. `rejected_prediction_tokens`: proposed "
    "ones that are no part of the text."
)


class CompletionUsage(ResponseBody):
    """Prompt tokens, those of them found in the cache, generated tokens, and those that speculation proposed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int] = Field(description="`cached_tokens`: prompt tokens found in the cache.")
    completion_tokens_details: dict[str, int] = Field(description=_PREDICTION_TOKENS)


class ChatUsage(CompletionUsage):
    """Prompt tokens, those of them found in the cache, generated tokens, and those of them that are reasoning."""

    completion_tokens_details: dict[str, int] = Field(
        description="`reasoning_tokens`: generated tokens of the model's thinking, with its marks. "
        + _PREDICTION_TOKENS
    )


class _GenerationResponse(ResponseBody):
    id: str
    created: int = Field(description="Unix time in seconds.")
    model: str
    choices: list[dict[str, Any]] = Field(description="As OpenAI's, ordered by index.")


class CompletionsResponse(_GenerationResponse):
    """Each choice has `text`, `finish_reason` and, on request, `logprobs` and `prompt_logprobs`."""

    object: Literal["text_completion"]
    usage: CompletionUsage


class ChatResponse(_GenerationResponse):
    """Each choice has `message` (with `tool_calls` and `reasoning_content`), `finish_reason`, `logprobs`."""

    object: Literal["chat.completion"]
    usage: ChatUsage
    prompt_logprobs: list[dict[str, Any] | None] | None = Field(
        None, description="On request: for each token of the prompt, token id to log probability, rank and text."
    )


class TokenUsage(ResponseBody):
    """Number of tokens of the texts."""

    prompt_tokens: int
    total_tokens: int


class Embedding(ResponseBody):
    """The vector of one text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsResponse(ResponseBody):
    """One vector for each text, in the order of the texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: TokenUsage


class DurationUsage(ResponseBody):
    """Seconds of a sound, rounded up."""

    type: Literal["duration"]
    seconds: int


class TranscriptSegment(ResponseBody):
    """A part of a text. Scores are those of models that write token by token."""

    id: int
    seek: int
    start: float = Field(description="Seconds from the beginning of the sound.")
    end: float
    text: str
    tokens: list[int]
    temperature: float | None = None
    avg_logprob: float | None = None
    compression_ratio: float | None = None
    no_speech_prob: float | None = None


class TranscriptWord(ResponseBody):
    """A word with its times in seconds."""

    word: str
    start: float
    end: float


class TranscriptionResponse(ResponseBody):
    """The text of a sound. Other members than `text` and `usage` are those of verbose_json."""

    text: str
    usage: DurationUsage
    task: Literal["transcribe", "translate"] | None = None
    language: str | None = Field(None, description="Code of the language; empty where the model knows none.")
    duration: float | None = Field(None, description="Seconds of the sound.")
    segments: list[TranscriptSegment] | None = None
    words: list[TranscriptWord] | None = None


class RankedDocument(ResponseBody):
    """The score of one document."""

    index: int = Field(description="Index of the document in the request.")
    relevance_score: float
    document: RerankDocument | None = None


class RerankResponse(ResponseBody):
    """Documents by descending score."""

    id: str
    model: str
    usage: TokenUsage
    results: list[RankedDocument]


class PairScore(ResponseBody):
    """The score of one pair."""

    index: int
    object: Literal["score"]
    score: float


class ScoreResponse(ResponseBody):
    """One score for each pair, in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: int = Field(description="Unix time in seconds.")
    model: str
    data: list[PairScore]
    usage: TokenUsage


class ClassifiedText(ResponseBody):
    """vLLM's form of one text. `probs`: of the labels of the model, in their order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class LabelScore(ResponseBody):
    """The score of one label."""

    score: float
    label: str


class ClassifyResponse(ResponseBody):
    """`object` is `classify` for a request with `raw_scores`; `data` then has all labels by falling score."""

    id: str
    object: Literal["list", "classify"]
    created: int = Field(description="Unix time in seconds.")
    model: str
    data: list[ClassifiedText] | list[list[LabelScore]]
    usage: TokenUsage


class PooledText(ResponseBody):
    """The vector of one text, those of its tokens, or the scores of the labels in their order.

    A sparse vector has its zeros.
    """

    index: int
    object: Literal["pooling"]
    data: list[float] | list[list[float]] | str


class PoolingResponse(ResponseBody):
    """One result for each text, in the order of the texts."""

    id: str
    object: Literal["list"]
    created: int = Field(description="Unix time in seconds.")
    model: str
    data: list[PooledText]
    usage: TokenUsage


class TokenizeResponse(ResponseBody):
    """The tokens, their count, and the maximum that the model reads."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeResponse(ResponseBody):
    """The text of the tokens."""

    prompt: str


class SpeechEvent(ResponseBody):
    """The data of one event of a streamed sound."""

    type: Literal["speech.audio.delta", "speech.audio.done"]
    audio: str | None = Field(None, description="The next bytes of the file in base64, of a delta.")
    usage: dict[str, int] | None = Field(None, description="At the end. `input_tokens`: characters of the text.")


class OpenAiErrorDetail(ResponseBody):
    """`code`: an error code of the native API. `param`: the field that is wrong."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAiErrorResponse(ResponseBody):
    """The body of every response below /v1 with a status of 400 or above."""

    error: OpenAiErrorDetail
