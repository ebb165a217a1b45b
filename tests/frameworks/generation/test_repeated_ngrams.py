"""Repeated n-grams of a text compared with transformers' processor, token by token."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import NoRepeatNGramLogitsProcessor

from frameworks.generation.text.bad_words import RepeatedNgrams, ngrams_of

SIZE = 5


@given(
    size=st.integers(1, 4),
    token_ids=st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=20),
    prompt_length=st.integers(0, 3),
)
def test_banned_tokens_match_transformers(size: int, token_ids: list[int], prompt_length: int) -> None:
    prompt, text = token_ids[:prompt_length], token_ids[prompt_length:]
    ours, processor = RepeatedNgrams(size, prompt), NoRepeatNGramLogitsProcessor(size)
    copied = ours.copy()
    for count, token_id in enumerate(text, 1):
        before = ours.banned
        changed = ours.accept(token_id)
        scores = processor(torch.tensor([[*prompt, *text[:count]]]), torch.zeros(1, SIZE))
        assert ours.banned == set(torch.isinf(scores[0]).nonzero()[:, 0].tolist())
        assert changed == before ^ ours.banned
    # A copy does not change with it.
    for token_id in text:
        copied.accept(token_id)
    assert copied.banned == ours.banned


@given(token_ids=st.lists(st.integers(0, 3), max_size=10), size=st.integers(0, 4))
def test_ngrams_are_all_parts_of_a_text(token_ids: list[int], size: int) -> None:
    found = ngrams_of(tuple(token_ids), size)
    parts = [tuple(token_ids[i : i + size]) for i in range(len(token_ids))] if size else []
    assert set(found) == {part for part in parts if len(part) == size}
    assert len(found) == len(set(found))
