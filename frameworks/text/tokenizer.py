"""Tokenize texts and pairs of texts with the tokenizer of a model's folder."""

import os

# The library's own threads are shared by all its callers: a short text would wait for a core that has done with long
# ones, on the event loop too. Read by the library at each call.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.core.text_lengths import TextLengths, TextLimit, most_characters
from frameworks.text.config import TextConfig
from frameworks.text.tokenizer_file import read_tokenizer
from frameworks.text.truncation import count_special_tokens, truncated_ids, truncated_pair
from frameworks.types import Array, TokenBatch, Truncation

if TYPE_CHECKING:
    from tokenizers import Encoding

# Tokenising up to these bounds takes about 0.2 ms, less than a round trip between the loop and a thread.
_FEW_TEXTS = 4
_FEW_CHARACTERS = 1000
# Token ids of the library have 32 bits.
_LARGEST_ID = 2**32 - 1
_HALF = re.compile("[\ud800-\udfff]")
_REMEDY = "shorten the text or remove truncate = false"


class TextTokenizer:
    """Tokenise with a folder's tokenizer.json, truncated at the model's limit. Thread-safe; all methods block.

    Of a text beyond the limit only a part is tokenized, which gives the same tokens as the whole text. The exceptions
    are texts of more than `most_characters`: no more characters are read, and the last ones where the left is cut.
    """

    queries: "TextTokenizer | None" = None
    """Of a model with sides; this one is then that of documents."""

    def __init__(self, folder: Path, config: TextConfig) -> None:
        """Raises InvalidModel where tokenizer.json is absent or cannot be read."""
        self._tokenizer = read_tokenizer(folder, config)
        special = self._tokenizer.num_special_tokens_to_add(False)
        if config.max_tokens <= special:
            raise InvalidModel(
                f"{folder}: the limit of {config.max_tokens} tokens is used up by {special} special tokens"
            )
        self._config = config
        self._lengths = TextLengths(self._tokenizer)
        self._limit: TextLimit = self._lengths.limit(config.max_tokens - special)
        self._num_special_of_pair = self._tokenizer.num_special_tokens_to_add(True)
        self._known: Array | None = None
        self._num_before, self._num_after = count_special_tokens(self._tokenizer)
        special_ids = self._tokenizer.encode("").ids
        self._start, self._end = special_ids[: self._num_before], special_ids[self._num_before :]
        prompts = () if config.pools_prompt else {"", config.prompt, *config.prompts.values()}
        self._prompt_tokens = {prompt: self._count_prompt_tokens(prompt) for prompt in prompts}

    @property
    def vocabulary_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def tokenize(
        self, texts: list[str], truncate: Truncation, first: int = 0, prompt: str | None = None
    ) -> list[list[int]]:
        """Return the token ids of each text, with special tokens. `first`: number of texts before these in the request.

        `prompt`: what is put before each text; None: the prompt of the model's files. Raises InvalidInput, with both
        lengths, where `truncate` is False and a text exceeds the model's limit.
        """
        prompt, num_tokens = self._config.prompt if prompt is None else prompt, self._limit.num_tokens
        keeps_end = self._keeps_end(truncate)
        whole = [prompt + text for text in texts] if prompt else texts
        if not truncate:
            self._refuse_long(whole, first)
        else:
            whole = [text if len(text) <= num_tokens else self._needed(text, num_tokens, keeps_end) for text in whole]
        max_tokens = self._config.max_tokens
        rows = []
        for position, encoding in enumerate(self._encodings(whole, first), start=first):
            ids: list[int] = encoding.ids
            if len(ids) > max_tokens:
                if not truncate:
                    raise self._too_long(position, len(ids))
                ids = truncated_ids(ids, max_tokens, self._num_before, self._num_after, keeps_end)
            rows.append(ids)
        return rows

    def tokenize_at_once(
        self, texts: list[str], truncate: Truncation, prompt: str | None = None
    ) -> list[list[int]] | None:
        """As `tokenize`, for the event loop: return None where the texts are too long."""
        if len(texts) > _FEW_TEXTS or sum(map(len, texts)) > _FEW_CHARACTERS:
            return None
        return self.tokenize(texts, truncate, prompt=prompt)

    def batch_of(self, token_ids: list[list[int]], prompt: str | None = None) -> TokenBatch:
        """Return the batch of texts that were read with this prompt; None: the prompt of the model's files."""
        if self._config.pools_prompt:
            return TokenBatch(token_ids)
        prompt = self._config.prompt if prompt is None else prompt
        known = self._prompt_tokens.get(prompt)
        number = self._count_prompt_tokens(prompt) if known is None else known
        return TokenBatch(token_ids, unpooled=[number] * len(token_ids))

    def read_ids(self, token_ids: Sequence[list[int]], truncate: Truncation) -> list[list[int]]:
        """Return a caller's own token ids as the model reads them: as given, or cut at the model's limit.

        A cut keeps the special tokens on its side, as the cut of a text does.
        Raises InvalidInput for an id outside the vocabulary, and as `tokenize` for too many.
        """
        is_known = self._known_ids()
        limit = self._config.max_tokens
        read = []
        for position, ids in enumerate(token_ids):
            given = np.array(ids, np.int64)
            wrong = (given < 0) | (given >= is_known.size)
            given[wrong] = 0
            wrong |= ~is_known[given]
            if wrong.any():
                index = int(wrong.argmax())
                raise InvalidInput(
                    f"text[{position}][{index}]",
                    f"expected a token id of the model's vocabulary, got {ids[index]}; /v1/tokenize returns valid ids",
                )
            if len(ids) <= limit:
                read.append(ids)
            elif not truncate:
                raise self._too_long(position, len(ids))
            else:
                read.append(self._cut_ids(ids, self._keeps_end(truncate)))
        return read

    def tokenize_pairs(self, pairs: Sequence[tuple[str, str]], truncate: Truncation, first: int = 0) -> TokenBatch:
        """Tokenise each pair as one text for a cross-encoder; truncate the longer text of a long pair first.

        Raises InvalidInput as `tokenize`, and where the model's limit is used up by the special tokens of a pair.
        """
        max_tokens, keeps_end = self._config.max_tokens, self._keeps_end(truncate)
        budget = max_tokens - self._num_special_of_pair
        if budget <= 0:
            raise InvalidInput("text", f"expected no pairs, got one; the model reads {max_tokens} tokens")
        # Only the first text gets the prompt, as in sentence-transformers.
        whole = [(self._config.prompt + one, other) for one, other in pairs]
        if truncate:
            read = [
                (self._needed(one, budget, keeps_end), self._needed(other, budget, keeps_end)) for one, other in whole
            ]
        else:
            read = whole
            self._refuse_long([max(pair, key=len) for pair in whole], first)
        rows, types = [], []
        for index, encoding in enumerate(self._encodings(read, first)):
            ids, type_ids = encoding.ids, encoding.type_ids
            if len(ids) > max_tokens:
                if not truncate:
                    raise self._too_long(first + index, len(ids))
                kept = self._kept_of_pair(encoding, budget, whole[index], read[index], keeps_end)
                ids, type_ids = [ids[i] for i in kept], [type_ids[i] for i in kept]
            rows.append(ids)
            types.append(type_ids)
        return TokenBatch(rows, types if self._config.reads_token_types else None)

    def ids_of(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return all token ids of a text, beyond the model's limit too, and without the model's prompt.

        Raises InvalidInput where the text is not valid Unicode, or has too many characters.
        """
        limit = self._limit.to_list()
        if limit.exceeds(text):
            raise limit.refusal("prompt", text)
        try:
            [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except TypeError as error:
            raise _not_unicode([text], 0) from error
        ids: list[int] = encoding.ids
        return ids

    def spans_of(
        self, text: str, add_special_tokens: bool, position: int
    ) -> tuple[list[int], list[str], list[tuple[int, int] | None]]:
        """Return the ids and strings of all tokens of a text, and their first character and the one after the last.

        The span of a special token is None. `position`: of the text in the request. Raises InvalidInput as `ids_of`.
        """
        limit = self._limit.to_list()
        if limit.exceeds(text):
            raise limit.refusal(f"text[{position}]", text)
        try:
            [encoding] = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        except TypeError as error:
            raise _not_unicode([text], position) from error
        spans = [
            None if is_special else span
            for span, is_special in zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
        ]
        return encoding.ids, encoding.tokens, spans

    def id_of(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary spells it; None for an unknown one."""
        token_id: int | None = self._tokenizer.token_to_id(token)
        return token_id

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Return the strings of token ids. Raises InvalidInput, with the field `tokens`, for an unknown id."""
        return [self._name_of(token_id) for token_id in token_ids]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids without special tokens. Raises InvalidInput as `token_strings`."""
        self.token_strings(token_ids)
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def _count_prompt_tokens(self, prompt: str) -> int:
        """Return the tokens of a prompt alone, without one special token at its end, as sentence-transformers."""
        if not prompt:
            return 0
        [ids] = self.tokenize([prompt], truncate=True, prompt="")
        added = self._tokenizer.get_added_tokens_decoder()
        special = {*self._start, *self._end, *(each for each, token in added.items() if token.special)}
        return len(ids) - (bool(ids) and ids[-1] in special)

    def _keeps_end(self, truncate: Truncation) -> bool:
        """Return whether the end of a long text is kept, not its beginning."""
        return self._config.truncates_left if isinstance(truncate, bool) else truncate == "left"

    def _cut_ids(self, ids: list[int], keeps_end: bool) -> list[int]:
        limit, start, end = self._config.max_tokens, self._start, self._end
        if keeps_end:
            num_before = len(start) if len(start) < limit and ids[: len(start)] == start else 0
            return truncated_ids(ids, limit, num_before, 0, keeps_end=True)
        num_after = len(end) if len(end) < limit and ids[len(ids) - len(end) :] == end else 0
        return truncated_ids(ids, limit, 0, num_after, keeps_end=False)

    def _needed(self, text: str, num_tokens: int, keeps_end: bool) -> str:
        """Return the part of a text that has its first tokens; its last ones where the left side is cut."""
        if keeps_end:
            return text[-most_characters(num_tokens) :]
        return self._lengths.beginning(text[: most_characters(num_tokens)], num_tokens)

    def _kept_of_pair(
        self, encoding: "Encoding", budget: int, whole: tuple[str, str], read: tuple[str, str], keeps_end: bool
    ) -> list[int]:
        """Return the positions that are kept of the tokens of a long pair. `read`: the parts that were tokenized."""
        sequence_ids = encoding.sequence_ids
        if budget % 2 and read != whole and min(sequence_ids.count(0), sequence_ids.count(1)) > budget:
            # The longer text gets one token more: which one it is only the whole texts show.
            first, second = (text[: most_characters(budget)] for text in whole)
            [in_full] = self._encodings([(first, second)], 0)
            firsts, seconds = in_full.sequence_ids.count(0), in_full.sequence_ids.count(1)
            return truncated_pair(sequence_ids, budget, firsts > seconds, keeps_end)
        return truncated_pair(sequence_ids, budget, keeps_end=keeps_end)

    def _refuse_long(self, texts: Sequence[str], first: int) -> None:
        """Raise InvalidInput for a text that has too many tokens, without counting them all."""
        limit = self._limit
        for position, text in enumerate(texts, start=first):
            if self._lengths.has_more(text, limit):
                raise limit.refusal(f"text[{position}]", text, f"at most {self._config.max_tokens} tokens", _REMEDY)

    def _too_long(self, position: int, num_tokens: int) -> InvalidInput:
        return InvalidInput(
            f"text[{position}]", f"expected at most {self._config.max_tokens} tokens, got {num_tokens}; {_REMEDY}"
        )

    def _encodings(
        self, texts: list[str] | list[tuple[str, str]], first: int, add_special_tokens: bool = True
    ) -> "list[Encoding]":
        try:
            encodings: list[Encoding] = self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        except TypeError as error:
            raise _not_unicode(texts, first) from error
        return encodings

    def _known_ids(self) -> Array:
        """Return which ids the tokenizer knows, bool [largest id + 1]."""
        if self._known is None:
            ids = np.fromiter(self._tokenizer.get_vocab(with_added_tokens=True).values(), np.int64)
            is_known = np.zeros(int(ids.max(initial=0)) + 1, np.bool_)
            is_known[ids] = True
            self._known = is_known
        return self._known

    def _name_of(self, token_id: int) -> str:
        name = self._tokenizer.id_to_token(token_id) if 0 <= token_id <= _LARGEST_ID else None
        if name is None:
            raise InvalidInput("tokens", f"token {token_id} is not in the vocabulary of the model")
        return name


def _not_unicode(texts: Sequence[str | tuple[str, str]], first: int) -> InvalidInput:
    """Return the error for a str with half of a surrogate pair, which no encoding of Unicode can represent."""
    halves = (
        i for i, text in enumerate(texts, start=first) if _HALF.search(text if isinstance(text, str) else "".join(text))
    )
    return InvalidInput(f"text[{next(halves, first)}]", "not valid Unicode: it holds half of a surrogate pair")
