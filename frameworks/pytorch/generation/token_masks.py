"""Constraints on a text, as masks over a model's tokens: JSON, a pattern, or one of several choices.

The work is llguidance's (https://github.com/guidance-ai/llguidance): an Earley parser over lexer states that are made
when they are first met. What it knows of JSON Schema is in its docs/json_schema.md; the rest is refused. Patterns are
those of Rust's regex crate, and the whole text has to match.
"""

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from frameworks.errors import InvalidInput
from frameworks.generation.types import Constraint, TokenMatcher
from frameworks.pytorch.generation.masking import Words

_MAX_DEFINITION_BYTES = 64 << 10
_MAX_KEPT = 64
_MAX_WORDS_OF_AN_ERROR = 500
_WORD_BITS = 32
_FIELD = "constraint"

# One space, or a new line with its indentation: what people write and models have read. With more of it allowed, some
# models write nothing else until they are stopped.
_WHITESPACE = r" |\n[ \t]{0,20}"
_ANY_OBJECT = '{"type": "object"}'

# Lower than the library's own: 1 to 2 KiB are kept for every state, and the more a pattern is made of, the longer each
# mask takes. These leave room for thousands of choices, and masks that mostly take less than 1 ms.
_MAX_LEXER_STATES = 50_000
_MAX_PATTERN_FUEL = 100_000


class TokenMasks:
    """Of one model. Thread-safe; what is said to block is not for an event loop."""

    def __init__(self, tokenizer: Tokenizer, vocabulary_size: int, eos_token_ids: Iterable[int]) -> None:
        """`vocabulary_size`: how many logits the model gives; ids that the tokenizer does not have are never allowed.
        `eos_token_ids`: each of them ends a text.
        """
        self._tokenizer = tokenizer
        self._vocabulary_size = vocabulary_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._compiling = threading.Lock()
        self._table: LLTokenizer | None = None
        self._keeping = threading.Lock()
        self._kept: OrderedDict[Constraint, _GrammarMatcher] = OrderedDict()
        """What was compiled, the longest unused first; each stands at the beginning of its text."""

    def prepare(self) -> None:
        """Reads the vocabulary, which else the first `compile` does. It holds the interpreter, with all its threads:
        0.05 s for 4,096 tokens, 1 s for 128,000.
        """
        with self._compiling, contextlib.suppress(InvalidInput):
            self._table_of_tokens()

    def compile(self, constraint: Constraint) -> TokenMatcher:
        """A matcher at the beginning of a text. It blocks for milliseconds, up to half a second for what is hard; what
        was compiled lately is ready at once.

        Raises InvalidInput, with the field `constraint`, for what cannot be read, is too long or too complex, and where
        the model's tokenizer is of a kind that cannot be constrained.
        """
        beginning = self._known(constraint)
        if beginning is None:
            with self._compiling:
                beginning = self._known(constraint) or self._compile(constraint)
        return beginning.copy()

    def _known(self, constraint: Constraint) -> "_GrammarMatcher | None":
        with self._keeping:
            known = self._kept.get(constraint)
            if known is not None:
                self._kept.move_to_end(constraint)
            return known

    def _forget(self, constraint: Constraint) -> None:
        """Copies share what their lexer has learnt; where one has met its bound, so have all."""
        with self._keeping:
            self._kept.pop(constraint, None)

    def _compile(self, constraint: Constraint) -> "_GrammarMatcher":
        grammar = _grammar(constraint)
        table = self._table_of_tokens()
        limits = LLParserLimits(
            max_lexer_states=_MAX_LEXER_STATES, initial_lexer_fuel=_MAX_PATTERN_FUEL, verbose_errors=False
        )
        matcher = LLMatcher(table, grammar, log_level=0, limits=limits)
        error = matcher.get_error() or _begin(matcher.deep_copy())
        if error:
            raise InvalidInput(_FIELD, f"this {constraint.kind} cannot be used: {_words(error)}")
        beginning = _GrammarMatcher(matcher, table.vocab_size, self._vocabulary_size, lambda: self._forget(constraint))
        with self._keeping:
            self._kept[constraint] = beginning
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return beginning

    def _table_of_tokens(self) -> LLTokenizer:
        if self._table is None:
            known = (token_id for token_id in self._eos_token_ids if self._tokenizer.id_to_token(token_id) is not None)
            ends = [token_id for token_id in known if token_id < self._vocabulary_size]
            if not ends:
                raise InvalidInput(_FIELD, "the model has no end-of-text token, so no text could be made to end")
            size = max(self._tokenizer.get_vocab_size(with_added_tokens=True), self._vocabulary_size)
            try:
                self._table = LLTokenizer(self._tokenizer.to_str(), size, ends)
            except ValueError as error:
                raise InvalidInput(_FIELD, f"this model's tokenizer cannot be constrained: {_words(error)}") from error
        return self._table


def _begin(matcher: LLMatcher) -> str:
    """What goes wrong with the first token. Its masks are the hardest, and what they find out, all copies share."""
    may_come = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    if not matcher.is_error() and may_come.any():
        matcher.consume_token(int(may_come.argmax()))
        matcher.compute_bitmask()
    return matcher.get_error()


class _GrammarMatcher:
    """As TokenMatcher. Where the text has come to its end, the end-of-text tokens alone are allowed."""

    def __init__(self, matcher: LLMatcher, num_tokens: int, vocabulary_size: int, abort: Callable[[], None]) -> None:
        """`num_tokens`: how many the matcher's own masks have. `abort`: called where the matcher has failed."""
        self._matcher = matcher
        self._num_tokens = num_tokens
        self._vocabulary_size = vocabulary_size
        self._give_up = abort

    def fill_mask(self, mask: Words) -> None:
        """Raises InvalidInput, with the field `constraint`, where the text has become too complex to go on with, and
        where a token was accepted that the mask had not allowed.
        """
        if self._num_tokens == self._vocabulary_size:
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        else:
            self._fill_beginning(mask)
        if self._matcher.is_error():
            self._give_up()
            raise InvalidInput(_FIELD, f"the text cannot go on: {_words(self._matcher.get_error())}")

    def accept(self, token_id: int) -> None:
        """What goes wrong here is said by the next `fill_mask`."""
        self._matcher.consume_token(token_id)

    def copy(self) -> "_GrammarMatcher":
        return _GrammarMatcher(self._matcher.deep_copy(), self._num_tokens, self._vocabulary_size, self._give_up)

    def _fill_beginning(self, mask: Words) -> None:
        """Where the tokenizer has more tokens than the model has logits."""
        mask[:] = np.frombuffer(self._matcher.compute_bitmask(), np.int32)[: len(mask)]
        beyond = self._vocabulary_size % _WORD_BITS
        if beyond:
            mask.view(np.uint32)[-1] &= np.uint32((1 << beyond) - 1)


def _grammar(constraint: Constraint) -> str:
    """In llguidance's own language. Raises InvalidInput."""
    try:
        length = len(constraint.definition.encode())
        if length > _MAX_DEFINITION_BYTES:
            raise InvalidInput(_FIELD, f"{length} bytes; at most {_MAX_DEFINITION_BYTES} are read")
        match constraint.kind:
            case "json_object":
                return LLMatcher.grammar_from_json_schema(_ANY_OBJECT, overrides={"whitespace_pattern": _WHITESPACE})
            case "json_schema":
                return LLMatcher.grammar_from_json_schema(
                    constraint.definition, overrides={"whitespace_pattern": _WHITESPACE}
                )
            case "regex":
                return LLMatcher.grammar_from_regex(constraint.definition)
            case "choice":
                return LLMatcher.grammar_from_regex(_alternatives(constraint.definition))
    except UnicodeEncodeError as error:
        raise InvalidInput(_FIELD, "not valid Unicode: it holds half of a surrogate pair") from error
    except ValueError as error:
        raise InvalidInput(_FIELD, f"this {constraint.kind} cannot be read: {_words(error)}") from error


def _alternatives(definition: str) -> str:
    """A pattern."""
    try:
        choices = json.loads(definition)
    except RecursionError:
        choices = None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise InvalidInput(_FIELD, "a choice is a list of at least one string")
    "".join(choices).encode()  # half of a surrogate pair may be written as an escape
    return "|".join("".join(map(_as_pattern, choice)) for choice in choices)


def _as_pattern(character: str) -> str:
    return character if character.isascii() and character.isalnum() else f"\\x{{{ord(character):X}}}"


def _words(error: object) -> str:
    """An error in one line, without what it says of its own wordiness."""
    return " ".join(str(error).replace("<non-verbose/>", "").split())[:_MAX_WORDS_OF_AN_ERROR]
