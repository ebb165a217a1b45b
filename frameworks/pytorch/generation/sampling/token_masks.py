"""Compile constraints to grammar masks over a model's tokens: JSON, a pattern, or one of several choices.

The work is llguidance's (https://github.com/guidance-ai/llguidance): an Earley parser over lexer states that are made
when first needed. Its docs/json_schema.md lists the supported JSON Schema; other schemas are refused. Patterns are
those of Rust's regex crate, and the whole text has to match.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from frameworks.core.errors import InvalidInput
from frameworks.generation.sequences import TokenMatcher
from frameworks.generation.tools.definition import ToolsDefinition
from frameworks.generation.tools.grammar import ToolSchemaError, after_thinking, grammar_of
from frameworks.generation.types import Constraint
from frameworks.pytorch.generation.sampling.constraint_grammar import (
    FIELD,
    WHITESPACE,
    drop_unknown_formats,
    error_text,
    grammar_of_constraint,
    lark_of,
    without_forcing,
)
from frameworks.pytorch.generation.sampling.grammar_cache import Grammar, GrammarCache
from frameworks.pytorch.generation.sampling.masking import MaskWords
from memory.allocator import in_use_bytes

_MAX_TOOLS_BYTES = 512 << 10
_MAX_CACHED_BYTES = 256 << 20
_WORD_BITS = 32
# Below the library's own limits: 1 to 2 KiB are kept for every state, and each mask takes longer the larger a pattern
# is. These limits allow thousands of choices, and masks that mostly take less than 1 ms.
_MAX_LEXER_STATES = 50_000
_MAX_PATTERN_FUEL = 100_000
_MAX_GRAMMAR_SYMBOLS = 100_000
_MAX_STATES_BYTES = _MAX_LEXER_STATES * 2048
# Within these limits a compilation takes at most 20 MiB, about 70 to 170 bytes for each of the grammar's.
_MAX_COMPILED_BYTES = 32 << 20
_LEAST_COMPILED_BYTES = 64 << 10
_BYTES_PER_GRAMMAR_BYTE = 64
# Marks of the errors that these limits raise.
_TOO_LARGE = ("too big", "too large", "too many", "too complex")


class TokenMasks:
    """The constraints of one model. Thread-safe; methods that block do not belong on an event loop."""

    def __init__(self, tokenizer: Tokenizer | None, vocabulary_size: int, eos_token_ids: Iterable[int]) -> None:
        """`vocabulary_size`: number of logits of the model; ids without a token are never allowed. `eos_token_ids`:
        each of them ends a text. `tokenizer`: None for one of Python, whose texts cannot be constrained.
        """
        self._tokenizer_of_rust = tokenizer
        self._vocabulary_size = vocabulary_size
        self._eos_token_ids = sorted(eos_token_ids)
        self._compile_lock = threading.Lock()
        self._table: LLTokenizer | None = None
        self.cache = GrammarCache(_MAX_CACHED_BYTES)
        """Compiled constraints; each matcher stands at the start of its text."""

    def prepare(self) -> None:
        """Read the vocabulary ahead of the first `compile`. This holds the interpreter lock: 0.05 s for 4,096 tokens, 1
        s for 128,000.
        """
        with self._compile_lock, contextlib.suppress(InvalidInput):
            self._table_of_tokens()

    def compile(self, constraint: Constraint) -> TokenMatcher:
        """Return a matcher at the start of a text. Blocks for milliseconds, up to half a second for complex
        constraints; a recently compiled one is returned at once.

        Raises InvalidInput for the field `constraint`: unreadable, too long, too complex, or a model whose tokenizer
        cannot be constrained. Raises Overloaded if the constraints of other texts take all memory for them.
        """
        beginning = self.cache.find(constraint)
        if beginning is None:
            with self._compile_lock:
                beginning = self.cache.find(constraint) or self._compile(constraint)
        return beginning.copy()

    def _compile(self, constraint: Constraint) -> "_GrammarMatcher":
        table = self._table_of_tokens()
        grammar = self._tools_grammar(constraint) if constraint.kind == "tools" else self._own_grammar(constraint)
        if self._names_special_token(constraint.definition):
            grammar = without_forcing(grammar)
        self.cache.check_room()
        bytes_before = in_use_bytes()
        matcher = LLMatcher(table, grammar, log_level=0, limits=_limits())
        error = matcher.get_error() or _compute_first_masks(matcher.deep_copy())
        if error:
            self._check_each_tool(constraint)
            raise InvalidInput(FIELD, f"this {constraint.kind} cannot be used: {_with_remedy(error_text(error))}")
        shared = Grammar(_compiled_bytes(grammar, bytes_before), _MAX_STATES_BYTES)
        # Copies share the lexer, so a limit that one has reached holds for all.
        beginning = _GrammarMatcher(
            matcher, shared, table.vocab_size, self._vocabulary_size, lambda: self.cache.drop(constraint)
        )
        self.cache.add(constraint, beginning)
        return beginning

    def _own_grammar(self, constraint: Constraint) -> str:
        """Translate a constraint without tools, which may begin after thinking. Raises InvalidInput."""
        grammar = grammar_of_constraint(constraint)
        content = lark_of(grammar) if constraint.thinks else None
        if content is None:
            return grammar
        return LLMatcher.grammar_from_lark(after_thinking(content, self._mark, constraint.after_opening))

    def _mark(self, text: str) -> str | None:
        """Return the special token of a mark as grammars name it; None for a mark that is text."""
        token_id = self._tokenizer.token_to_id(text)
        # The library has no text for tokens that are special, nor for any other in angle brackets.
        if token_id is None or token_id >= self._vocabulary_size:
            return None
        return f"<[{token_id}]>" if self._table_of_tokens().is_special_token(token_id) else None

    def _tools_grammar(self, constraint: Constraint) -> str:
        """Translate tools. Raises InvalidInput for the field `tools[i]`."""
        if len(constraint.definition) > _MAX_TOOLS_BYTES:
            raise InvalidInput(
                "tools", f"expected at most {_MAX_TOOLS_BYTES} bytes, got {len(constraint.definition)}; send fewer"
            )
        try:
            grammar = grammar_of(_tools_of(constraint), self._mark, WHITESPACE, constraint.after_opening)
            return LLMatcher.grammar_from_lark(grammar)
        except ToolSchemaError as error:
            raise InvalidInput(f"tools[{error.index}]", error.message) from error
        except UnicodeEncodeError as error:
            raise InvalidInput("tools", "not valid Unicode: it holds half of a surrogate pair") from error

    def _check_each_tool(self, constraint: Constraint) -> None:
        """Raise InvalidInput for the field `tools[i]` if a grammar of tools failed because of one of them."""
        if constraint.kind != "tools":
            return
        for tool in _tools_of(constraint).tools:
            if tool.schema is not None:
                try:
                    grammar = LLMatcher.grammar_from_json_schema(json.dumps(tool.schema))
                    error = LLMatcher(self._table_of_tokens(), grammar, log_level=0, limits=_limits()).get_error()
                except ValueError as unreadable:
                    error = str(unreadable)
                if error:
                    raise InvalidInput(
                        f"tools[{tool.index}]",
                        f"expected a schema that can be held, got {_with_remedy(error_text(error))}",
                    )

    def _names_special_token(self, definition: str) -> bool:
        """Return whether a text of this definition may hold the text of a special token."""
        table = self._table_of_tokens()
        added = self._tokenizer.get_added_tokens_decoder()
        names = [token.content for token_id, token in added.items() if _is_special(table, token_id)]
        plain = definition.replace("\\", "")  # of JSON strings, or of a pattern
        return any(name in plain for name in names)

    @property
    def _tokenizer(self) -> Tokenizer:
        if self._tokenizer_of_rust is None:
            raise InvalidInput(FIELD, "expected a model with a tokenizer.json, got one with another tokenizer")
        return self._tokenizer_of_rust

    def _table_of_tokens(self) -> LLTokenizer:
        if self._table is None:
            known = (token_id for token_id in self._eos_token_ids if self._tokenizer.id_to_token(token_id) is not None)
            ends = [token_id for token_id in known if token_id < self._vocabulary_size]
            if not ends:
                raise InvalidInput(FIELD, "expected a model with an end-of-text token, got one without")
            size = max(self._tokenizer.get_vocab_size(with_added_tokens=True), self._vocabulary_size)
            try:
                self._table = LLTokenizer(self._tokenizer.to_str(), size, ends)
            except ValueError as error:
                raise InvalidInput(
                    FIELD, f"this model's tokenizer cannot be constrained: {error_text(error)}"
                ) from error
        return self._table


def _tools_of(constraint: Constraint) -> ToolsDefinition:
    """Return the tools of a constraint, without the formats that no grammar knows."""
    definition = ToolsDefinition.from_json(constraint.definition)
    drop_unknown_formats([*(tool.schema for tool in definition.tools), definition.content])
    return definition


def _is_special(table: LLTokenizer, token_id: int) -> bool:
    """Return whether the library has no text for a token."""
    return token_id < table.vocab_size and table.is_special_token(token_id)


def _limits() -> LLParserLimits:
    return LLParserLimits(
        max_lexer_states=_MAX_LEXER_STATES,
        initial_lexer_fuel=_MAX_PATTERN_FUEL,
        max_grammar_size=_MAX_GRAMMAR_SYMBOLS,
        verbose_errors=False,
    )


def _compiled_bytes(grammar: str, bytes_before: int | None) -> int:
    """Return the bytes that a compilation took: measured, within bounds, as other threads allocate meanwhile."""
    expected = _LEAST_COMPILED_BYTES + _BYTES_PER_GRAMMAR_BYTE * len(grammar)
    bytes_after = in_use_bytes()
    if bytes_before is None or bytes_after is None:
        return min(4 * expected, _MAX_COMPILED_BYTES)
    return min(max(expected, bytes_after - bytes_before), _MAX_COMPILED_BYTES)


def _compute_first_masks(matcher: LLMatcher) -> str:
    """Return the error of the first token, or an empty string. Its masks are the hardest, and all copies share their
    states.
    """
    allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    if not matcher.is_error() and allowed.any():
        matcher.consume_token(int(allowed.argmax()))
        matcher.compute_bitmask()
    return matcher.get_error()


class _GrammarMatcher:
    """A TokenMatcher. At the end of the text only the end-of-text tokens are allowed."""

    def __init__(
        self, matcher: LLMatcher, grammar: Grammar, num_tokens: int, vocabulary_size: int, abort: Callable[[], None]
    ) -> None:
        """`num_tokens`: length of the matcher's own masks. `abort`: called when the matcher has failed."""
        self._matcher = matcher
        self.grammar = grammar
        self._num_tokens = num_tokens
        self._vocabulary_size = vocabulary_size
        self._on_failure = abort

    def fill_mask(self, mask: MaskWords) -> None:
        """Raise InvalidInput for the field `constraint` if the text is too complex to continue, or if a token was
        accepted that the mask did not allow.
        """
        self.grammar.num_masks += 1
        if self._num_tokens == self._vocabulary_size:
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        else:
            self._fill_beginning(mask)
        if self._matcher.is_error():
            self._on_failure()
            raise InvalidInput(FIELD, f"the text cannot continue: {error_text(self._matcher.get_error())}")

    def accept(self, token_id: int) -> None:
        """Advance past a token. Errors are reported by the next `fill_mask`."""
        self._matcher.consume_token(token_id)

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """As TokenMatcher.num_allowed."""
        return int(self._matcher.validate_tokens(list(token_ids)))

    def copy(self) -> "_GrammarMatcher":
        return _GrammarMatcher(
            self._matcher.deep_copy(), self.grammar, self._num_tokens, self._vocabulary_size, self._on_failure
        )

    def _fill_beginning(self, mask: MaskWords) -> None:
        """Fill the mask if the tokenizer has more tokens than the model has logits."""
        mask[:] = np.frombuffer(self._matcher.compute_bitmask(), np.int32)[: len(mask)]
        beyond = self._vocabulary_size % _WORD_BITS
        if beyond:
            mask.view(np.uint32)[-1] &= np.uint32((1 << beyond) - 1)


def _with_remedy(error: str) -> str:
    """Return an error of the library with a remedy, where one of the limits was reached."""
    # The library's own remedy, to raise a limit, is none for a caller.
    error, advice, _ = error.partition("; either increase limits.")
    return f"{error}; simplify it" if advice or any(mark in error for mark in _TOO_LARGE) else error
