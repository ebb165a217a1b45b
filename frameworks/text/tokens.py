"""GrpcHandler a model's tokenizer, in the place of the model: which tokens a text is, and which text tokens are."""

from collections.abc import Sequence
from dataclasses import dataclass

from frameworks.errors import InvalidInput
from frameworks.generation.tokenizer import GenerationTokenizer
from frameworks.generation.types import Prompt
from frameworks.runtime import BatchModel, StepModel
from frameworks.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """`add_special_tokens`: with those that the model's files put around a text; a conversation has what its template
    gives it. `with_strings`: each token's own string too.
    """

    prompt: Prompt
    add_special_tokens: bool = True
    with_strings: bool = False


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    """Asks for the text of token ids."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenizeAnswer:
    """`strings`: the tokens as the vocabulary has them, "Ġthe", "##ing"; None where they were not asked for.

    `max_tokens`: as of the ModelSpec.
    """

    token_ids: Sequence[int]
    strings: Sequence[str] | None
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class DetokenizeAnswer:
    """Special tokens are left out of the text."""

    text: str


TokenQuestion = TokenizeRequest | DetokenizeRequest
TokenAnswer = TokenizeAnswer | DetokenizeAnswer


def ask_tokenizer(model: BatchModel | StepModel, question: TokenQuestion) -> TokenAnswer:
    """Blocks while it works. Raises InvalidInput, with the field `prompt`, `messages` or `tokens`."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InvalidInput("prompt", "this model reads no text")
    if isinstance(question, DetokenizeRequest):
        return DetokenizeAnswer(tokenizer.decode(question.token_ids))
    token_ids = _ids_of(tokenizer, question)
    strings = tokenizer.token_strings(token_ids) if question.with_strings else None
    return TokenizeAnswer(token_ids, strings, model.spec.max_tokens)


def _ids_of(tokenizer: TextTokenizer | GenerationTokenizer, question: TokenizeRequest) -> Sequence[int]:
    """Of a generating model what it is given for the prompt: nothing that its files put behind a whole text."""
    if isinstance(tokenizer, TextTokenizer):
        assert isinstance(question.prompt, str)
        return tokenizer.ids_of(question.prompt, question.add_special_tokens)
    if isinstance(question.prompt, str) and not question.add_special_tokens:
        return tokenizer.ids_of(question.prompt, add_special_tokens=False)
    return tokenizer.encode(question.prompt)
