"""Compute scores of pairs from the embeddings of their texts or from a cross-encoder's logits."""

import re
from dataclasses import dataclass

import numpy as np

from frameworks.errors import InvalidInput
from frameworks.text.tokenizer import scores
from frameworks.types import Array, EmbedAnswer, PairRequest, ScoreAnswer, TokenBatch

PAIR_FIELD = re.compile(r"pairs\[(?P<pair>\d+)\](\[(?P<side>[01])\])?")
"""The field of an InvalidInput: a pair, or one of its texts."""

_TEXT_FIELD = re.compile(r"text\[(\d+)\]")
# Rows of one product; other threads run between two blocks.
_BLOCK_ROWS = 1024


@dataclass(frozen=True, slots=True)
class PairedTexts:
    """`texts`: each once. `firsts`, `seconds`: of each pair where its texts are among them."""

    texts: list[str]
    firsts: list[int]
    seconds: list[int]

    def in_its_pair(self, error: InvalidInput) -> InvalidInput:
        """Return the error of a text with the field of the first pair that has the text."""
        named = _TEXT_FIELD.fullmatch(error.field)
        if named is None:
            return error
        place = int(named[1])
        side, places = (0, self.firsts) if place in self.firsts else (1, self.seconds)
        return _renamed(error, f"pairs[{places.index(place)}][{side}]")


def in_pairs(error: InvalidInput) -> InvalidInput:
    """Return the error of a text with the field of its pair."""
    named = _TEXT_FIELD.fullmatch(error.field)
    return error if named is None else _renamed(error, f"pairs[{named[1]}]")


def paired(request: PairRequest) -> PairedTexts:
    """Return the distinct texts of the pairs; a repeated query is embedded once."""
    places: dict[str, int] = {}
    firsts = [places.setdefault(first, len(places)) for first, _ in request.pairs]
    seconds = [places.setdefault(second, len(places)) for _, second in request.pairs]
    return PairedTexts(list(places), firsts, seconds)


def cosines(pairs: PairedTexts, answer: EmbedAnswer) -> ScoreAnswer:
    """`answer`: the embeddings of the texts, each at length 1 (one of zeros has none, and a cosine of 0)."""
    found: list[float] = []
    for at in range(0, len(pairs.firsts), _BLOCK_ROWS):
        firsts = answer.embeddings[pairs.firsts[at : at + _BLOCK_ROWS]].astype(np.float64)
        seconds = answer.embeddings[pairs.seconds[at : at + _BLOCK_ROWS]].astype(np.float64)
        found += np.einsum("ij,ij->i", firsts, seconds).clip(-1.0, 1.0).tolist()
    return ScoreAnswer(found, answer.tokens)


def probabilities(logits: Array, tokens: TokenBatch) -> ScoreAnswer:
    """Of a cross-encoder's one logit per pair [pairs, 1]: through a sigmoid, as sentence-transformers' CrossEncoder."""
    return ScoreAnswer(scores(logits, multi_label=True)[:, 0].tolist(), sum(map(len, tokens.token_ids)))


def _renamed(error: InvalidInput, field: str) -> InvalidInput:
    return InvalidInput(field, error.reason)
