"""Convert tokens to text, at once or one by one, with the same result.

The decoders of language models give bytes: byte-level BPE (GPT-2, Llama 3, Qwen), and SentencePiece with byte fallback
(Llama 2, Mistral, Gemma). There each token has its own bytes, whatever surrounds it, and the text is those bytes as
UTF-8. With any other decoder a token's text is what it adds to the token before it.

The library's own DecodeStream is not used: after invalid bytes it raises on every further token, and it cannot flush an
incomplete character.
"""

import codecs
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from frameworks.generation.text.tokenizer import REPLACEMENT, TokenStream

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# An incomplete UTF-8 character has at most so many bytes.
_LONGEST_BEGINNING = 3
# Without byte decoders: hold back at most so many tokens that end in an incomplete character.
_MOST_OPEN_TOKENS = 4
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_EACH_BYTE = "roundhouse.each-byte"


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return REPLACEMENT * (error.end - error.start), error.end


codecs.register_error(_EACH_BYTE, _replace_each_byte)


class Detokenizer(Protocol):
    """Thread-safe. Special tokens and unknown ids have no text."""

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def text_of(self, token_id: int) -> str:
        """Return a token's own text within a text; a special token's name; incomplete characters as U+FFFD."""
        ...

    def bytes_of(self, token_id: int) -> bytes:
        """Return a token's own bytes within a text; none of a special or unknown one."""
        ...

    def stream(self, prompt_ids: Sequence[int]) -> TokenStream:
        """Return a stream for the text after a prompt: what `decode` of both adds to `decode` of the prompt.

        A character that the prompt begins and later tokens complete belongs to the later text.
        """
        ...


def detokenizer_of(tokenizer: "Tokenizer") -> Detokenizer:
    """Choose the detokenizer for the tokenizer's decoder. The vocabulary must not change afterwards."""
    steps = _steps(json.loads(tokenizer.decoder.__getstate__())) if tokenizer.decoder is not None else []
    stripped = ""
    match steps:
        case [{"type": "ByteLevel"}]:
            return ByteDetokenizer(tokenizer, _byte_level, "replace")
        case [*others, {"type": "Strip", "content": str(character), "start": 1, "stop": 0}]:
            steps, stripped = others, character
    match steps:
        case [*first, {"type": "ByteFallback"}, {"type": "Fuse"}] if (replaced := _replacements(first)) is not None:
            return ByteDetokenizer(tokenizer, partial(_byte_fallback, replaced), _EACH_BYTE, stripped)
    return JoinedDetokenizer(tokenizer)


class ByteDetokenizer:
    """For tokens that have bytes of their own.

    With SentencePiece's tokens each invalid byte becomes one U+FFFD and leaves its neighbours alone, as in
    SentencePiece itself. (The tokenizers library then replaces the whole run of such tokens, delivered ones included;
    both agree on well-formed runs.)
    """

    def __init__(
        self, tokenizer: "Tokenizer", bytes_of_name: Callable[[str], bytes], errors: str, stripped: str = ""
    ) -> None:
        """`bytes_of_name`: converts a token's name to its bytes. `stripped`: a character that is removed from the start
        of a text, once.
        """
        self._tokenizer = tokenizer
        self._bytes_of_name = bytes_of_name
        self.errors = errors
        self.stripped = stripped
        self._special_ids = _special_ids(tokenizer)
        self._known: dict[int, bytes] = {}

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(self.bytes_of, token_ids)).decode("utf-8", self.errors).removeprefix(self.stripped)

    def text_of(self, token_id: int) -> str:
        if token_id in self._special_ids:
            return self._tokenizer.id_to_token(token_id) or ""
        return self.bytes_of(token_id).decode("utf-8", self.errors)

    def stream(self, prompt_ids: Sequence[int]) -> TokenStream:
        return _ByteStream(self, prompt_ids)

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token; none for a special or unknown one."""
        own = self._known.get(token_id)
        if own is None:
            name = None if token_id in self._special_ids else self._tokenizer.id_to_token(token_id)
            own = self._known[token_id] = self._bytes_of_name(name) if name is not None else b""
        return own


class _ByteStream:
    def __init__(self, tokens: ByteDetokenizer, prompt_ids: Sequence[int]) -> None:
        self._bytes_of = tokens.bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")(tokens.errors)
        last = b""
        for token_id in reversed(prompt_ids):
            if len(last) >= _LONGEST_BEGINNING:
                break
            last = tokens.bytes_of(token_id) + last
        self._decoder.decode(last)
        begun, _ = self._decoder.getstate()
        # If the prompt's last character stays incomplete, its replacement belongs to the prompt's own text.
        self._not_ours = begun.decode("utf-8", tokens.errors) if last else tokens.stripped

    def push(self, token_id: int) -> str:
        text = self._decoder.decode(self._bytes_of(token_id))
        return self._without_beginning(text) if text and self._not_ours else text

    def flush(self) -> str:
        text = self._decoder.decode(b"", final=True)
        return self._without_beginning(text) if text and self._not_ours else text

    def _without_beginning(self, text: str) -> str:
        """Remove the part of the first text that belongs to the prompt."""
        beginning, self._not_ours = self._not_ours, ""
        return text.removeprefix(beginning)


class JoinedDetokenizer:
    """For tokens whose text depends on the token before them, such as the space between two words."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        self._special_ids = _special_ids(tokenizer)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def text_of(self, token_id: int) -> str:
        if not self.has_text(token_id):
            return self._tokenizer.id_to_token(token_id) or ""
        once, twice = self.decode([token_id]), self.decode([token_id, token_id])
        return twice.removeprefix(once)

    def bytes_of(self, token_id: int) -> bytes:
        if not self.has_text(token_id):
            return b""
        byte = _BYTE_TOKEN.fullmatch(self._tokenizer.id_to_token(token_id) or "")
        return bytes([int(byte[1], 16)]) if byte else self.text_of(token_id).encode()

    def stream(self, prompt_ids: Sequence[int]) -> TokenStream:
        return _JoinedStream(self, prompt_ids)

    def has_text(self, token_id: int) -> bool:
        return token_id not in self._special_ids and self._tokenizer.id_to_token(token_id) is not None


class _JoinedStream:
    def __init__(self, tokens: JoinedDetokenizer, prompt_ids: Sequence[int]) -> None:
        self._tokens = tokens
        last = next(filter(tokens.has_text, reversed(prompt_ids)), None)
        self._before = [] if last is None else [last]
        self._open: list[int] = []

    def push(self, token_id: int) -> str:
        if not self._tokens.has_text(token_id):
            return ""
        self._open.append(token_id)
        text = self._tokens.decode(self._before + self._open)
        if text.endswith(REPLACEMENT) and len(self._open) < _MOST_OPEN_TOKENS:
            return ""
        return self._added(text)

    def flush(self) -> str:
        return self._added(self._tokens.decode(self._before + self._open)) if self._open else ""

    def _added(self, text: str) -> str:
        known = self._tokens.decode(self._before)
        self._before, self._open = self._open[-1:], []
        return text[len(known) :]


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the decoders of a nested sequence in order."""
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _steps(inner)]


def _replacements(steps: list[dict[str, Any]]) -> list[tuple[str, str]] | None:
    """Return what each step replaces by what, or None if a step does anything else."""
    replaced = []
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)}:
                replaced.append((pattern, content))
            case _:
                return None
    return replaced


def _special_ids(tokenizer: "Tokenizer") -> frozenset[int]:
    return frozenset(i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special)


def _byte_of_letter() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes of Latin-1 are themselves, the others letters from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_LETTER = _byte_of_letter()


def _byte_level(name: str) -> bytes:
    """Convert a byte-level name. A letter outside the alphabet marks an added token, which stands for itself."""
    try:
        return bytes([_BYTE_OF_LETTER[letter] for letter in name])
    except KeyError:
        return name.encode()


def _byte_fallback(replaced: list[tuple[str, str]], name: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(name)
    if byte:
        return bytes([int(byte[1], 16)])
    for pattern, content in replaced:
        name = name.replace(pattern, content)
    return name.encode()
