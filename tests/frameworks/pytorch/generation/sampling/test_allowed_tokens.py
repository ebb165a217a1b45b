"""Masks of tokens that a text may not have next, compared with transformers' rules for timestamps."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from frameworks.generation.types import Sampling, TimestampRules
from frameworks.pytorch.generation.sampling.allowed_tokens import AllowedTokens

VOCABULARY_SIZE, END_ID, FIRST_ID = 40, 20, 25
PROMPT = [21, 22]


@given(
    st.lists(st.integers(0, VOCABULARY_SIZE - 1), max_size=12),
    st.sampled_from([None, 0, 4]),
    st.integers(0, 2**20),
    st.floats(-6, 6),
)
def test_timestamps_masked_as_in_transformers(
    tokens: list[int], max_initial: int | None, seed: int, weight: float
) -> None:
    rules = TimestampRules(FIRST_ID, END_ID, max_initial)
    allowed = AllowedTokens.of(Sampling(timestamps=rules))
    assert allowed is not None
    for token in tokens:
        allowed = allowed.copied()
        allowed.accept(token)
    logits = torch.randn(VOCABULARY_SIZE, generator=torch.Generator().manual_seed(seed)) * 3
    # More weight on timestamps, or on texts.
    logits[FIRST_ID:] += weight
    config: Any = SimpleNamespace(
        no_timestamps_token_id=FIRST_ID - 1,
        eos_token_id=END_ID,
        bos_token_id=END_ID,
        max_initial_timestamp_index=max_initial,
    )
    theirs = WhisperTimeStampLogitsProcessor(config, begin_index=len(PROMPT))
    expected = theirs(torch.tensor([[*PROMPT, *tokens]]), logits[None].clone())[0]
    allowed.mask(logits)
    torch.testing.assert_close(logits, expected, rtol=0, atol=0)


def test_allowed_ids_exclude_other_tokens() -> None:
    allowed = AllowedTokens.of(Sampling(allowed_ids=(3, 7)))
    assert allowed is not None
    logits = torch.arange(10.0)
    allowed.mask(logits)
    assert [i for i, each in enumerate(logits.tolist()) if each != -math.inf] == [3, 7]
    assert int(logits.argmax()) == 7


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(timestamps=TimestampRules(5, 3, None, are_written=False))])
def test_text_without_timestamps_has_no_mask(sampling: Sampling) -> None:
    assert AllowedTokens.of(sampling) is None
