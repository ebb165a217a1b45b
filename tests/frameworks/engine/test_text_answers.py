"""Scores compared with a plain loop and torch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from frameworks.core.errors import InvalidInput
from frameworks.engine.text_answers import PAIR_FIELD, cosines, distinct_texts, name_pair, probabilities
from frameworks.text.pooling import normalize_rows
from frameworks.types import EmbedAnswer, PairRequest, TokenBatch

TEXT = st.sampled_from("abcdef")


@given(st.lists(st.tuples(TEXT, TEXT), max_size=20))
def test_repeated_text_is_embedded_once(pairs: list[tuple[str, str]]) -> None:
    found = distinct_texts(PairRequest(pairs))
    assert len(found.texts) == len(set(found.texts))
    assert [(found.texts[i], found.texts[j]) for i, j in zip(found.firsts, found.seconds, strict=True)] == pairs
    assert set(found.texts) == {text for pair in pairs for text in pair}


@given(
    st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=20),
    np_st.arrays(np.float32, (6, 4), elements=st.floats(-1, 1, width=32)),
)
def test_scores_are_cosines(
    pairs: list[tuple[str, str]], vectors: "np.ndarray[tuple[int, int], np.dtype[np.float32]]"
) -> None:
    found = distinct_texts(PairRequest(pairs))
    rows = vectors[["abcdef".index(text) for text in found.texts]]
    answer = cosines(found, EmbedAnswer(normalize_rows(rows), tokens=7))
    assert answer.tokens == 7
    for (one, other), score in zip(pairs, answer.scores, strict=True):
        a, b = (torch.tensor(vectors["abcdef".index(text)]) for text in (one, other))
        assert -1 <= score <= 1
        assert score == pytest.approx(torch.cosine_similarity(a, b, dim=0, eps=1e-12).item(), abs=1e-5)


def test_many_pairs_are_scored_in_blocks() -> None:
    pairs = [("a", "b"), ("b", "b"), ("a", "a")] * 1000
    rows = normalize_rows(np.array([[1, 0], [3, 4]], np.float32))
    assert cosines(distinct_texts(PairRequest(pairs)), EmbedAnswer(rows, 1)).scores == pytest.approx([0.6, 1, 1] * 1000)


@given(np_st.arrays(np.float32, (5, 1), elements=st.floats(-200, 200, width=32)))
def test_logits_become_probabilities(logits: "np.ndarray[tuple[int, int], np.dtype[np.float32]]") -> None:
    wanted = torch.sigmoid(torch.tensor(logits, dtype=torch.float64))[:, 0]
    tokens = TokenBatch([[1, 2]] * 5)
    answer = probabilities(logits, tokens, raw_scores=False)
    assert answer.scores == pytest.approx(wanted.tolist())
    assert probabilities(logits, tokens, raw_scores=True).scores == logits[:, 0].tolist()
    assert answer.tokens == 10


@pytest.mark.parametrize(
    ("field", "told"),
    [("text[0]", "pairs[0][0]"), ("text[2]", "pairs[1][1]"), ("text[1]", "pairs[1][0]"), ("other", "other")],
)
def test_error_of_text_names_its_pair(field: str, told: str) -> None:
    found = distinct_texts(PairRequest([("a", "b"), ("b", "c")]))
    error = found.name_pair(InvalidInput(field, "too long: by far"))
    assert (error.field, error.message) == (told, f"{told}: too long: by far")
    assert (PAIR_FIELD.fullmatch(told) is None) == (told == field)


@pytest.mark.parametrize(("field", "told"), [("text[7]", "pairs[7]"), ("text", "text")])
def test_error_of_pair_names_its_place(field: str, told: str) -> None:
    error = name_pair(InvalidInput(field, "too long: by far"))
    assert (error.field, error.message) == (told, f"{told}: too long: by far")
    assert (PAIR_FIELD.fullmatch(told) is None) == (told == field)
