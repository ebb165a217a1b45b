"""Split texts at white space, as WhitespaceTokenizer of sentence-transformers 6: words without an id have no token."""

import re
import string
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from frameworks.core.errors import InvalidInput
from frameworks.text.config import TextConfig
from frameworks.text.tokenizer import TextTokenizer
from frameworks.text.words.vocabulary import Vocabulary, read_vocabulary
from frameworks.types import Array, TokenBatch, Truncation

_WORD = re.compile(r"\S+")


def load_word_tokenizer(folder: Path, config: TextConfig) -> TextTokenizer:
    """Return the tokenizer of a model that reads whole words. Raises InvalidModel."""
    assert config.words is not None
    vocabulary = read_vocabulary(config.words)
    return HubTokenizer(folder, config) if vocabulary is None else WordTokenizer(vocabulary, config)


class HubTokenizer(TextTokenizer):
    """A tokenizer.json under WordEmbeddings. A long text is cut behind its special tokens, which are not kept."""

    def __init__(self, folder: Path, config: TextConfig) -> None:
        """Raises InvalidModel as TextTokenizer."""
        super().__init__(folder, config)
        self._limit = self._lengths.limit(config.max_tokens)
        self._num_before = self._num_after = 0
        self._start, self._end = [], []


class WordTokenizer(TextTokenizer):
    """Its tokens are the words of a list; there is no tokenizer.json, and there are no special tokens."""

    def __init__(self, vocabulary: Vocabulary, config: TextConfig) -> None:
        """`config`: has the limit and the prompts."""
        self._config = config
        self._words = vocabulary.words
        self._stop_words = vocabulary.stop_words
        self._lower_case = vocabulary.lower_case
        # Of equal words the last one counts.
        self._ids = {word: index for index, word in enumerate(vocabulary.words)}
        self._known: Array | None = np.ones(len(vocabulary.words), np.bool_)
        self._start, self._end = [], []

    @property
    def vocabulary_size(self) -> int:
        return len(self._words)

    def tokenize(
        self, texts: list[str], truncate: Truncation, first: int = 0, prompt: str | None = None
    ) -> list[list[int]]:
        """As TextTokenizer.tokenize."""
        prompt = self._config.prompt if prompt is None else prompt
        limit, rows = self._config.max_tokens, []
        for position, text in enumerate(texts, start=first):
            ids = self._ids_in(prompt + text)
            if len(ids) > limit:
                if not truncate:
                    raise self._too_long(position, len(ids))
                ids = ids[-limit:] if self._keeps_end(truncate) else ids[:limit]
            rows.append(ids)
        return rows

    def tokenize_pairs(self, pairs: Sequence[tuple[str, str]], truncate: Truncation, first: int = 0) -> TokenBatch:
        """Raise InvalidInput: no model that reads whole words reads two texts at once."""
        raise InvalidInput("text", "expected no pairs, got one; the model reads one text at a time")

    def ids_of(self, text: str, add_special_tokens: bool) -> list[int]:
        """As TextTokenizer.ids_of."""
        return self._ids_in(text)

    def spans_of(
        self, text: str, add_special_tokens: bool, position: int
    ) -> tuple[list[int], list[str], list[tuple[int, int] | None]]:
        """As TextTokenizer.spans_of. The span of a token is that of the word in the text, with its punctuation."""
        found = ((self.id_of_word(match.group()), match.span()) for match in _WORD.finditer(text))
        known = [(token_id, span) for token_id, span in found if token_id is not None]
        ids = [token_id for token_id, _ in known]
        return ids, [self._words[token_id] for token_id in ids], [span for _, span in known]

    def id_of(self, token: str) -> int | None:
        """As TextTokenizer.id_of."""
        return self._ids.get(token)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the words, with a space between them. Raises InvalidInput as `token_strings`."""
        return " ".join(self.token_strings(token_ids))

    def id_of_word(self, word: str) -> int | None:
        """Return the id of a word of a text; None where it has no token."""
        word = word.lower() if self._lower_case else word
        bare = word.strip(string.punctuation)
        for index, spelling in enumerate((word, bare, bare.lower())):
            if spelling in self._stop_words:
                return None
            # The last spelling may be the empty word.
            if spelling in self._ids and (spelling or index == 2):
                return self._ids[spelling]
        return None

    def _ids_in(self, text: str) -> list[int]:
        found = map(self.id_of_word, text.split())
        return [token_id for token_id in found if token_id is not None]

    def _name_of(self, token_id: int) -> str:
        if not 0 <= token_id < len(self._words):
            raise InvalidInput("tokens", f"token {token_id} is not in the vocabulary of the model")
        return self._words[token_id]
