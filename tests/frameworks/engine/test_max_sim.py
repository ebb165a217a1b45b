"""MaxSim equals a plain loop."""

import numpy as np
import pytest

from frameworks.engine import text_answers
from frameworks.engine.text_answers import max_sim, max_sims, texts_by_side
from frameworks.types import Array, MultiVectorAnswer, PairRequest


def vectors(*lengths: int) -> list[Array]:
    numbers = np.random.default_rng(5)
    return [numbers.standard_normal((length, 8)).astype(np.float32) for length in lengths]


@pytest.mark.parametrize("block_numbers", [1, 200, 10_000])
def test_max_sim_equals_plain_loop(block_numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_answers, "_BLOCK_NUMBERS", block_numbers)
    query, *documents = vectors(5, 7, 1, 0, 30, 12)
    expected = [sum(max((float(q @ d) for d in document), default=0.0) for q in query) for document in documents]
    np.testing.assert_allclose(max_sim(query, documents), expected, rtol=1e-5)


def test_pairs_scored_by_first_as_query() -> None:
    pairs, num_queries = texts_by_side(PairRequest([("a", "b"), ("b", "a"), ("a", "c"), ("a", "b")]))
    assert (pairs.texts, num_queries) == (["a", "b", "b", "a", "c"], 2)
    answer = MultiVectorAnswer(vectors(2, 3, 4, 5, 6), tokens=20)
    found = max_sims(pairs, answer)
    sides = [(0, 2), (1, 3), (0, 4), (0, 2)]
    expected = [max_sim(answer.vectors[one], [answer.vectors[other]])[0] for one, other in sides]
    np.testing.assert_allclose(found.scores, expected, rtol=1e-5)
    assert found.tokens == 20
