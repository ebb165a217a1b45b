"""Tokenize and detokenize with a model's tokenizer, without running the model."""

from collections.abc import Sequence
from dataclasses import dataclass

from frameworks.core.errors import InvalidInput
from frameworks.generation.text.tokenizer import GenerationTokenizer
from frameworks.generation.types import Conversation, Prompt
from frameworks.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """Request the token ids of a prompt.

    `add_special_tokens`: include the special tokens of the model's files. A conversation always has those of its
    chat template. `with_strings`: also return the string of each token.
    """

    prompt: Prompt
    add_special_tokens: bool = True
    with_strings: bool = False

    @property
    def has_images(self) -> bool:
        """Whether the prompt is a conversation with images."""
        return isinstance(self.prompt, Conversation) and self.prompt.has_images


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    """Request the text of token ids."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenizeAnswer:
    """The tokens of a prompt.

    `strings`: the tokens as the vocabulary spells them, "Ġthe", "##ing"; None where not requested. `max_tokens`: the
    limit of the model, as in ModelSpec.
    """

    token_ids: Sequence[int]
    strings: Sequence[str] | None
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class DetokenizeAnswer:
    """The text of token ids, without special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class SpansRequest:
    """Request the tokens of texts, and where they are. `add_special_tokens`: include those of the model's files."""

    texts: tuple[str, ...]
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class SpansAnswer:
    """For each text its tokens.

    `spans`: the first character of each token, and the first one after it; None for a special token.
    """

    token_ids: list[list[int]]
    strings: list[list[str]]
    spans: list[list[tuple[int, int] | None]]


TokenRequest = TokenizeRequest | DetokenizeRequest | SpansRequest
TokenAnswer = TokenizeAnswer | DetokenizeAnswer | SpansAnswer


def answer_token_request(
    tokenizer: TextTokenizer | GenerationTokenizer | None, max_tokens: int | None, request: TokenRequest
) -> TokenAnswer:
    """Tokenize or detokenize; blocks. `max_tokens`: the limit of the model, for the answer.

    Raises InvalidInput, with the field `prompt`, `messages` or `tokens`; `text[i]` for SpansRequest.
    """
    if tokenizer is None:
        raise InvalidInput("prompt", "this model reads no text")
    if isinstance(request, DetokenizeRequest):
        return DetokenizeAnswer(tokenizer.decode(request.token_ids))
    if isinstance(request, SpansRequest):
        return _spans_of(tokenizer, request)
    token_ids = _ids_of(tokenizer, max_tokens or 0, request)
    strings = tokenizer.token_strings(token_ids) if request.with_strings else None
    return TokenizeAnswer(token_ids, strings, max_tokens)


def _ids_of(tokenizer: TextTokenizer | GenerationTokenizer, max_tokens: int, request: TokenizeRequest) -> Sequence[int]:
    """Return the token ids that the model would read. A generating model gets no tokens after the prompt."""
    prompt = request.prompt
    if isinstance(tokenizer, TextTokenizer):
        assert isinstance(prompt, str)
        return tokenizer.ids_of(prompt, request.add_special_tokens)
    limit = tokenizer.limit(max_tokens).to_list()
    if isinstance(prompt, str) and not request.add_special_tokens:
        if limit.exceeds(prompt):
            raise limit.refusal("prompt", prompt)
        return tokenizer.ids_of(prompt, add_special_tokens=False)
    return tokenizer.encode(prompt, limit)


def _spans_of(tokenizer: TextTokenizer | GenerationTokenizer, request: SpansRequest) -> SpansAnswer:
    if not isinstance(tokenizer, TextTokenizer):
        raise InvalidInput("text", "expected a model that embeds or classifies texts, got one that generates text")
    answer = SpansAnswer([], [], [])
    for position, text in enumerate(request.texts):
        ids, strings, spans = tokenizer.spans_of(text, request.add_special_tokens, position)
        answer.token_ids.append(ids)
        answer.strings.append(strings)
        answer.spans.append(spans)
    return answer
