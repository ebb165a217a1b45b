"""Tokenise and pad texts, pool hidden states, and compute embeddings and scores of text models."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Encoding, Tokenizer, normalizers

from frameworks.errors import InvalidInput, InvalidModel
from frameworks.text.config import Pooling, TextConfig
from frameworks.types import Array, TokenBatch

# Tokenising up to these bounds takes about 0.2 ms, less than a round trip between the loop and a thread.
_FEW_TEXTS = 4
_FEW_CHARACTERS = 1000
# Token ids of the library have 32 bits.
_LARGEST_ID = 2**32 - 1


@dataclass(frozen=True, slots=True)
class PaddedTokens:
    """`input_ids` and `attention_mask`: int64 [texts, longest]. The mask is 1 on tokens and 0 on padding.

    `token_type_ids`: the same shape for pairs of texts; else None.
    """

    input_ids: Array
    attention_mask: Array
    token_type_ids: Array | None = None


class TextTokenizer:
    """Tokenise with a folder's tokenizer.json, truncated at the model's limit. All methods block."""

    def __init__(self, folder: Path, config: TextConfig) -> None:
        """Raises InvalidModel where tokenizer.json is absent or cannot be read."""
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise InvalidModel(
                f"{file}: absent; a text model needs it beside its weights "
                "(transformers writes it with AutoTokenizer.from_pretrained(…).save_pretrained(folder))"
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise InvalidModel(f"{file}: not a tokenizer: {error}") from error
        # The file may contain the padding and truncation of the training; here only the model's limit applies.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        if config.lower_case:
            # In the tokenizer, as in sentence-transformers: it applies to the prompt too, and keeps [MASK] in a text.
            steps = [normalizers.Lowercase(), self._tokenizer.normalizer]
            self._tokenizer.normalizer = normalizers.Sequence([step for step in steps if step is not None])
        special = self._tokenizer.num_special_tokens_to_add(False)
        if config.max_tokens <= special:
            raise InvalidModel(
                f"{folder}: the limit of {config.max_tokens} tokens is used up by {special} special tokens"
            )
        self._config = config
        self._num_special_of_pair = self._tokenizer.num_special_tokens_to_add(True)
        self._truncates = False
        # Truncation is state of the tokenizer, so one call runs at a time. Within a call Rust uses every core.
        self._lock = threading.Lock()
        self._known: tuple[Array, list[int]] | None = None

    def tokenize(self, texts: list[str], truncate: bool) -> list[list[int]]:
        """Return the token ids of each text, with special tokens. Waits while another thread tokenizes.

        Raises InvalidInput, with both lengths, where `truncate` is False and a text exceeds the model's limit.
        """
        with self._lock:
            return self._tokenize(texts, truncate)

    def tokenize_at_once(self, texts: list[str], truncate: bool) -> list[list[int]] | None:
        """As `tokenize`, for the event loop: return None where it would wait, or where the texts are too long."""
        if len(texts) > _FEW_TEXTS or sum(map(len, texts)) > _FEW_CHARACTERS or not self._lock.acquire(blocking=False):
            return None
        try:
            return self._tokenize(texts, truncate)
        finally:
            self._lock.release()

    def read_ids(self, token_ids: Sequence[list[int]], truncate: bool) -> list[list[int]]:
        """Return a caller's own token ids as the model reads them: as given, or cut at the model's limit.

        A cut keeps the special tokens at the end, as the cut of a text does. Waits while another thread tokenizes.
        Raises InvalidInput for an id outside the vocabulary, and as `tokenize` for too many.
        """
        is_known, end = self._vocabulary()
        limit = self._config.max_tokens
        read = []
        for position, ids in enumerate(token_ids):
            numbers = np.array(ids, np.int64)
            wrong = (numbers < 0) | (numbers >= is_known.size)
            numbers[wrong] = 0
            wrong |= ~is_known[numbers]
            if wrong.any():
                index = int(wrong.argmax())
                raise InvalidInput(
                    f"text[{position}][{index}]",
                    f"expected a token id of the model's vocabulary, got {ids[index]}; /v1/tokenize returns valid ids",
                )
            if len(ids) <= limit:
                read.append(ids)
            elif not truncate:
                raise _too_long(position, limit, len(ids))
            elif end and len(end) < limit and ids[-len(end) :] == end:
                read.append(ids[: limit - len(end)] + end)
            else:
                read.append(ids[:limit])
        return read

    def tokenize_pairs(self, pairs: Sequence[tuple[str, str]], truncate: bool) -> TokenBatch:
        """Tokenise each pair as one text for a cross-encoder; truncate the longer text of a long pair first.

        Waits while another thread tokenizes. Raises InvalidInput as `tokenize`, and where the model's limit is used up
        by the special tokens of a pair.
        """
        if self._config.max_tokens <= self._num_special_of_pair:
            raise InvalidInput("text", f"expected no pairs, got one; the model reads {self._config.max_tokens} tokens")
        with self._lock:
            # Only the first text gets the prompt, as in sentence-transformers.
            encodings = self._encodings([(self._config.prompt + first, second) for first, second in pairs], truncate)
        types = [encoding.type_ids for encoding in encodings] if self._config.reads_token_types else None
        return TokenBatch([encoding.ids for encoding in encodings], types)

    def ids_of(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return all token ids of a text, beyond the model's limit too, and without the model's prompt.

        Waits while another thread tokenizes. Raises InvalidInput where the text is not valid Unicode.
        """
        with self._lock:
            self._set_truncation(False)
            try:
                [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            except TypeError as error:
                raise _not_unicode([text]) from error
        ids: list[int] = encoding.ids
        return ids

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Return the strings of token ids. Raises InvalidInput, with the field `tokens`, for an unknown id."""
        return [self._name_of(token_id) for token_id in token_ids]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids without special tokens. Raises InvalidInput as `token_strings`."""
        self.token_strings(token_ids)
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def _tokenize(self, texts: list[str], truncate: bool) -> list[list[int]]:
        if self._config.prompt:
            texts = [self._config.prompt + text for text in texts]
        return [encoding.ids for encoding in self._encodings(texts, truncate)]

    def _encodings(self, texts: list[str] | list[tuple[str, str]], truncate: bool) -> list[Encoding]:
        self._set_truncation(truncate)
        try:
            encodings = self._tokenizer.encode_batch_fast(texts)
        except TypeError as error:
            raise _not_unicode(texts) from error
        if not truncate:
            for position, encoding in enumerate(encodings):
                if len(encoding) > self._config.max_tokens:
                    raise _too_long(position, self._config.max_tokens, len(encoding))
        return encodings

    def _vocabulary(self) -> tuple[Array, list[int]]:
        """Return which ids the tokenizer knows, bool [largest id + 1], and the special tokens at the end of a text."""
        with self._lock:
            if self._known is None:
                ids = np.fromiter(self._tokenizer.get_vocab(with_added_tokens=True).values(), np.int64)
                is_known = np.zeros(int(ids.max(initial=0)) + 1, np.bool_)
                is_known[ids] = True
                self._set_truncation(False)
                example = self._tokenizer.encode("a")
                num_special = next(
                    (i for i, is_special in enumerate(reversed(example.special_tokens_mask)) if not is_special), 0
                )
                self._known = is_known, example.ids[len(example.ids) - num_special :]
            return self._known

    def _set_truncation(self, truncate: bool) -> None:
        if truncate and not self._truncates:
            self._tokenizer.enable_truncation(self._config.max_tokens)
        elif self._truncates and not truncate:
            self._tokenizer.no_truncation()
        self._truncates = truncate

    def _name_of(self, token_id: int) -> str:
        name = self._tokenizer.id_to_token(token_id) if 0 <= token_id <= _LARGEST_ID else None
        if name is None:
            raise InvalidInput("tokens", f"token {token_id} is not in the vocabulary of the model")
        return name


def _too_long(position: int, limit: int, length: int) -> InvalidInput:
    return InvalidInput(
        f"text[{position}]",
        f"expected at most {limit} tokens, got {length}; shorten the text or remove truncate = false",
    )


def _not_unicode(texts: Sequence[str | tuple[str, str]]) -> InvalidInput:
    """Return the error for a str with half of a surrogate pair, which no encoding of Unicode can represent."""
    halves = (i for i, text in enumerate(texts) if any("\ud800" <= c <= "\udfff" for c in "".join(text)))
    return InvalidInput(f"text[{next(halves, 0)}]", "not valid Unicode: it holds half of a surrogate pair")


def pad(
    token_ids: list[list[int]],
    pad_token_id: int,
    min_length: int = 1,
    empty: Callable[..., Array] = np.empty,
    token_type_ids: list[list[int]] | None = None,
) -> PaddedTokens:
    """Put texts into one array, padded on the right to the longest text, or to `min_length`.

    `empty(shape, dtype)` allocates the arrays.
    """
    longest = max(1, min_length, max(map(len, token_ids), default=1))
    shape, dtype = (len(token_ids), longest), np.dtype(np.int64)
    input_ids, attention_mask = empty(shape, dtype), empty(shape, dtype)
    input_ids.fill(pad_token_id)
    attention_mask.fill(0)
    for row, ids in enumerate(token_ids):
        input_ids[row, : len(ids)] = ids
        attention_mask[row, : len(ids)] = 1
    if token_type_ids is None:
        return PaddedTokens(input_ids, attention_mask)
    types = empty(shape, dtype)
    types.fill(0)
    for row, own in enumerate(token_type_ids):
        types[row, : len(own)] = own
    return PaddedTokens(input_ids, attention_mask, types)


def pool(hidden: Array, attention_mask: Array, pooling: Pooling) -> Array:
    """Pool the hidden states [texts, longest, size] of the tokens into float32 vectors [texts, size].

    Mean, cls and max are those of sentence-transformers' Pooling module.
    """
    hidden = hidden.astype(np.float32, copy=False)
    match pooling:
        case "cls":
            first: Array = hidden[:, 0]
            return np.ascontiguousarray(first)
        case "max":
            # Not -inf: it would remain for a text without tokens, and normalising it gives NaN.
            highest: Array = np.where(attention_mask[:, :, None] == 0, -1e9, hidden).max(axis=1)
            return highest.astype(np.float32)
        case "mean":
            mask = attention_mask.astype(np.float32)
            count = np.maximum(mask.sum(axis=1, keepdims=True), 1e-9)
            mean: Array = np.matmul(mask[:, None, :], hidden)[:, 0] / count
            return mean


def normalize_rows(vectors: Array) -> Array:
    """Scale each row to L2 length 1, as torch.nn.functional.normalize: a row of zeros stays zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)


def scores(logits: Array, multi_label: bool) -> Array:
    """Return probabilities [texts, labels] of raw logits: sigmoid if `multi_label`, else softmax over the labels."""
    logits = logits.astype(np.float64)
    if multi_label:
        # exp of negative numbers only, so that no logit overflows.
        decay = np.exp(-np.abs(logits))
        return np.where(logits >= 0, 1.0, decay) / (1.0 + decay)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: Array = powers / powers.sum(axis=1, keepdims=True)
    return result
