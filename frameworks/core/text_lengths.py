"""Bound the tokens of a text by its characters, so that no more of a long text is tokenized than can matter.

The tokenizers library needs up to 600 bytes of memory for a character, and about a microsecond.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from frameworks.core.errors import InvalidInput

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_CHARACTERS = 128 * 1024
"""Characters of a text that are read where a token may stand for any number of them; for long limits more."""
_CHARACTERS_PER_TOKEN = 64
# A text of most languages has 3 to 5 characters to a token.
_FIRST_CHARACTERS_PER_TOKEN = 8
_FIRST_CHARACTERS = 256
_GROWTH = 4
# The words at the end of a part may go on in the rest of the text: the last one, spaces, and line ends.
_UNSETTLED_WORDS = 4
# A character of NFC has at most 4 characters of NFD.
_COMPOSED = 4
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"

State = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TextLimit:
    """The limit of a text in tokens, without special tokens, and in characters: a longer text is not tokenized.

    `ignores_space`: white space does not count, because the tokenizer may drop it. `for_list`: all tokens are listed,
    and the model does not read them; only the characters count.
    """

    num_tokens: int
    num_characters: int
    ignores_space: bool = False
    for_list: bool = False

    def to_list(self) -> "TextLimit":
        """Return the limit of a text whose tokens are listed: a caller may look for the parts that a model can read."""
        return TextLimit(self.num_tokens, max(MOST_CHARACTERS, self.num_characters), for_list=True)

    def exceeds(self, text: str) -> bool:
        """Whether the text has too many characters."""
        surplus = len(text) - self.num_characters
        if surplus > 0 and self.ignores_space:
            surplus -= sum(map(text.count, _WHITE_SPACE))
        return surplus > 0

    def refusal(self, field: str, text: str, expected: str = "", remedy: str = "shorten it") -> InvalidInput:
        """Return the error for a text that has too many characters, or too many tokens to count them all.

        `expected`: the limit as the caller knows it. Default: the context of a generating model.
        """
        length = f"{len(text)} characters"
        if self.for_list:
            return InvalidInput(field, f"expected at most {self.num_characters} characters, got {length}; send parts")
        found = f"{length}, which are more" if self.exceeds(text) else f"more, in {length}"
        expected = expected or f"fewer than {self.num_tokens + 1} tokens, the model's context for prompt and text"
        return InvalidInput(field, f"expected {expected}, got {found}; {remedy}")


class TextLengths:
    """Bounds of the tokens of a text, from its characters, for one tokenizer. Thread-safe.

    The tokenizer must not pad, truncate or change.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder().values()
        names = [len(_normalized(tokenizer, token.content)) for token in added]
        names += [len(token.content) for token in added]
        self._characters_per_token = _characters_per_token(tokenizer, max(names, default=0))
        self._ignores_space = any(token.lstrip or token.rstrip for token in added)
        self._unsettled_words = _UNSETTLED_WORDS + max(names, default=0)
        # A split may depend on all that follows without a space, as where digits are grouped from the right.
        self._looks_ahead = "(?=" in json.dumps(_state(tokenizer.pre_tokenizer))

    def limit(self, num_tokens: int) -> TextLimit:
        """Return the limit for `num_tokens` tokens. No text that has so few is beyond it.

        The exceptions are texts of a tokenizer whose tokens may stand for any number of characters: spaces that it
        drops, words that it does not know. There the limit is 64 characters for each token, at least 128 Ki.
        """
        if self._characters_per_token is None:
            return TextLimit(num_tokens, most_characters(num_tokens))
        return TextLimit(num_tokens, self._characters_per_token * num_tokens, self._ignores_space)

    def beginning(self, text: str, num_tokens: int) -> str:
        """Return a prefix of the text whose first tokens, more than `num_tokens`, are also those of the whole text.

        Returns the whole text if it is short, if it has no more tokens, or if no prefix settles its tokens, as in a
        long word. Special tokens do not count.
        """
        size = _FIRST_CHARACTERS_PER_TOKEN * num_tokens + _FIRST_CHARACTERS
        while size * _GROWTH < len(text):
            part = self._part(text, size)
            if part and self._is_settled(part, num_tokens):
                return part
            size *= _GROWTH
        return text

    def has_more(self, text: str, limit: TextLimit) -> bool:
        """Whether the characters of the text, or the tokens of a prefix, prove that it exceeds the limit."""
        if limit.exceeds(text):
            return True
        return not limit.for_list and len(self.beginning(text, limit.num_tokens)) < len(text)

    def _part(self, text: str, size: int) -> str:
        """Return about `size` characters that end with a word; an empty string where there is no end of a word."""
        part = text[:size]
        words, _, last = part.rpartition(" ")
        if len(last) < size // 2:
            return words.rstrip()
        return "" if self._looks_ahead else part.rstrip()

    def _is_settled(self, part: str, num_tokens: int) -> bool:
        """Whether the part has more than `num_tokens` tokens that no further text changes."""
        try:
            # The faster variant of the library does not count words.
            [encoding] = self._tokenizer.encode_batch([part], add_special_tokens=False)
        except TypeError:
            return False  # half of a surrogate pair: the error names the whole text
        words = encoding.word_ids
        if len(words) <= num_tokens:
            return False
        last_needed, last = words[num_tokens], words[-1]
        return last_needed is not None and last is not None and last_needed + self._unsettled_words <= last


def most_characters(num_tokens: int) -> int:
    """Return how many characters of a text are read at all where so many tokens are the limit."""
    return max(MOST_CHARACTERS, _CHARACTERS_PER_TOKEN * num_tokens)


def _characters_per_token(tokenizer: "Tokenizer", longest_added: int) -> int | None:
    """Return the highest number of characters that one token stands for; None where there is no highest number."""
    normalizing = _shrinking(_state(tokenizer.normalizer))
    if normalizing is None or not _keeps_characters(_state(tokenizer.pre_tokenizer)):
        return None
    vocabulary = tokenizer.get_vocab()
    if not _covers_characters(tokenizer, vocabulary):
        return None
    return normalizing * max(longest_added, max(map(len, vocabulary), default=1))


def _shrinking(normalizer: State) -> int | None:
    """Return how many characters a normalizer makes one of, at most; None where it may drop any number."""
    match normalizer:
        case {"type": None | "Prepend" | "Lowercase" | "NFD" | "NFKD" | "ByteLevel"}:
            return 1
        case {"type": "NFC" | "NFKC"}:
            return _COMPOSED
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if content.strip():
            return -(-len(pattern) // len(content))
        case {"type": "Sequence", "normalizers": list(steps)}:
            factor = 1
            for step in steps:
                own = _shrinking(step)
                if own is None:
                    return None
                factor *= max(1, own)
            return factor
    return None


def _keeps_characters(pre_tokenizer: State) -> bool:
    """Whether every character reaches the model."""
    match pre_tokenizer:
        case {"type": None | "ByteLevel" | "Metaspace" | "Digits" | "UnicodeScripts"}:
            return True
        case {"type": "Split" | "Punctuation", "behavior": behavior}:
            return bool(behavior != "Removed")
        case {"type": "Sequence", "pretokenizers": list(steps)}:
            return all(map(_keeps_characters, steps))
    return False


def _covers_characters(tokenizer: "Tokenizer", vocabulary: Mapping[str, int]) -> bool:
    """Whether each character has a token of its own at least; false where one token may stand for unknown ones."""
    model = tokenizer.model
    if type(model).__name__ == "BPE":
        if model.byte_fallback and _has_bytes(vocabulary):
            return True
        if model.unk_token is not None:
            return not model.fuse_unk
        return _works_on_bytes(tokenizer) and _has_byte_letters(vocabulary)
    return False


def _has_bytes(vocabulary: Mapping[str, int]) -> bool:
    return all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))


def _has_byte_letters(vocabulary: Mapping[str, int]) -> bool:
    from tokenizers.pre_tokenizers import ByteLevel

    return all(letter in vocabulary for letter in ByteLevel.alphabet())


def _works_on_bytes(tokenizer: "Tokenizer") -> bool:
    """Whether the model gets bytes, as letters of an alphabet of 256."""
    states = [_state(tokenizer.normalizer), _state(tokenizer.pre_tokenizer)]
    return any('"ByteLevel"' in json.dumps(state) for state in states)


def _state(component: Any) -> State:
    """Return the settings of a part of a tokenizer, as tokenizer.json has them."""
    state: State = {"type": None} if component is None else json.loads(component.__getstate__())
    return state


def _normalized(tokenizer: "Tokenizer", text: str) -> str:
    return text if tokenizer.normalizer is None else str(tokenizer.normalizer.normalize_str(text))
