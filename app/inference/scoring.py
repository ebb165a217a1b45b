"""The arithmetic of scores: which texts an embed model has to embed for pairs, and what its vectors, or a
cross-encoder's logits, say of them.
"""

import re
from dataclasses import dataclass

import numpy as np

from frameworks.errors import InvalidInput
from frameworks.text.tokenizer import scores
from frameworks.types import Array, EmbedAnswer, PairRequest, ScoreAnswer, TokenBatch

PAIR_FIELD = re.compile(r"pairs\[(?P<pair>\d+)\](\[(?P<side>[01])\])?")
"""What the field of an InvalidInput is called: a pair, or one of its texts."""

_TEXT_FIELD = re.compile(r"text\[(\d+)\]")
# Rows that are multiplied at one go: between two blocks of them other threads have their turn.
_BLOCK_ROWS = 1024


@dataclass(frozen=True, slots=True)
class PairedTexts:
    """`texts`: each once. `firsts`, `seconds`: of each pair where its texts are among them."""

    texts: list[str]
    firsts: list[int]
    seconds: list[int]

    def in_its_pair(self, error: InvalidInput) -> InvalidInput:
        """What is wrong with one of the texts, told of the first pair that has it."""
        named = _TEXT_FIELD.fullmatch(error.field)
        if named is None:
            return error
        place = int(named[1])
        side, places = (0, self.firsts) if place in self.firsts else (1, self.seconds)
        return _renamed(error, f"pairs[{places.index(place)}][{side}]")


def in_pairs(error: InvalidInput) -> InvalidInput:
    """What is wrong with a pair, by its place: its texts are read together."""
    named = _TEXT_FIELD.fullmatch(error.field)
    return error if named is None else _renamed(error, f"pairs[{named[1]}]")


def paired(request: PairRequest) -> PairedTexts:
    """A query that stands in every pair is embedded once."""
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
