"""Tokenize queries and documents for a model of late interaction."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from frameworks.core.errors import InvalidModel
from frameworks.text.config import TextConfig
from frameworks.text.late_interaction import LateInteraction
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import Array, TokenBatch, Truncation


class LateTokenizer(TextTokenizer):
    """A TextTokenizer of documents, with one of queries beside it."""

    def __init__(self, folder: Path, config: TextConfig) -> None:
        """`config`: has the limit and prompt of documents. Raises InvalidModel."""
        late = config.late
        assert late is not None
        super().__init__(folder, config)
        length = min(late.query_length or config.max_tokens, config.max_positions or config.max_tokens)
        self._length = length
        self._late = late
        self._queries = TextTokenizer(folder, replace(config, max_tokens=length, prompt=late.query_prompt))
        mask = self.id_of("[MASK]")
        if mask is None:
            mask = self.id_of("<mask>")
        if late.expands and mask is None:
            raise InvalidModel(f"{folder}: do_query_expansion: expected a mask token in tokenizer.json, got none")
        self._mask = mask
        self._skipped = np.array(self._ids_of_words(late), np.int64)

    def read(self, texts: list[str], truncate: Truncation, num_queries: int, first: int = 0) -> TokenBatch:
        """Return the tokens of texts, of which the first `num_queries` are queries.

        `first`: number of texts before these in the request. Raises InvalidInput as `tokenize`.
        """
        rows = self._queries.tokenize(texts[:num_queries], truncate, first)
        attended = list(map(len, rows))
        if self._late.expands:
            assert self._mask is not None
            rows = [ids + [self._mask] * (self._length - len(ids)) for ids in rows]
            if self._late.attends:
                attended = list(map(len, rows))
        documents = self.tokenize(texts[num_queries:], truncate, first + num_queries)
        return TokenBatch(rows + documents, attended=attended + list(map(len, documents)))

    def has_vector(self, ids: list[int]) -> Array:
        """Return which tokens of a document have a vector, bool [tokens]."""
        return ~np.isin(np.asarray(ids, np.int64), self._skipped)

    def _ids_of_words(self, late: LateInteraction) -> list[int]:
        # A word of several tokens has no id, and skips none.
        ids = [self.id_of(word) for word in late.skipped]
        return [token_id for token_id in ids if token_id is not None]
