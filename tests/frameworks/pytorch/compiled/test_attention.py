"""Compiled attention over blocks equals torch's attention in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frameworks.pytorch.compiled.attention_cases import BLOCKS, IN_ROW, KINDS, Form, Text
from tests.frameworks.pytorch.compiled.layers import needs_vectors

pytestmark = [pytest.mark.isa, needs_vectors]

# Sums of up to 400 products in float32, of numbers that are rounded as those of the reference.
TOLERANCE = 2e-6


def check(text: Text) -> None:
    expected = text.expected()
    assert float((text.whole() - expected).abs().max()) < TOLERANCE * max(1.0, float(expected.abs().max()))


@pytest.mark.extended
@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 20, 7])
def test_attention_of_head_sizes_matches_reference(head_size: int, dtype: torch.dtype) -> None:
    check(Text(70, 90, Form(head_size, dtype=dtype), IN_ROW))


@pytest.mark.parametrize(("group", "heads"), [(1, 1), (3, 3), (4, 2), (7, 7), (8, 3), (64, 64)])
def test_attention_of_head_groups_matches_reference(group: int, heads: int) -> None:
    check(Text(33, 40, Form(group=group, heads=heads), IN_ROW))


@pytest.mark.parametrize("window", [1, 2, 31, 32, 33, 100])
def test_attention_of_windows_matches_reference(window: int) -> None:
    check(Text(40, 200, Form(window=window), IN_ROW))


@pytest.mark.parametrize("window", [0, 1, 31, 32, 33, 100])
@pytest.mark.parametrize("count", [20, 200])
def test_attention_to_later_tokens_matches_reference(count: int, window: int) -> None:
    check(Text(0, count, Form(group=1, heads=1, window=window, sees_later=True), IN_ROW))


@pytest.mark.parametrize("factor", [1e-3, 30.0])
def test_attention_of_other_spreads_matches_reference(factor: float) -> None:
    """With large scores, a few keys have all of the weight."""
    text = Text(100, 60, Form(64), IN_ROW)
    text.queries *= factor
    expected = text.expected()
    # The scores' own errors grow with them.
    assert float((text.whole() - expected).abs().max()) < 1e-6 * max(2.0, 10 * factor)


forms = st.builds(
    Form,
    head_size=st.sampled_from([8, 24, 64]),
    group=st.integers(1, 5),
    heads=st.integers(1, 5),
    dtype=st.sampled_from(list(KINDS)),
    window=st.just(0) | st.integers(1, 300),
)


@settings(max_examples=60)
@given(
    start=st.integers(0, 200),
    count=st.integers(1, 200),
    form=forms,
    order=st.permutations(range(BLOCKS)),
    seed=st.integers(0, 10),
)
def test_attention_of_any_text_matches_reference(
    start: int, count: int, form: Form, order: list[int], seed: int
) -> None:
    check(Text(start, count, form, order, seed))


@given(
    first=st.integers(0, 99), tokens=st.integers(1, 16), heads=st.integers(1, 4), window=st.just(0) | st.integers(1, 90)
)
def test_row_does_not_depend_on_its_tile(first: int, tokens: int, heads: int, window: int) -> None:
    """The same bits come from tiles of any rows."""
    text = Text(50, 116, Form(24, 4, 4, window=window), IN_ROW)
    other = Text(50, 116, Form(24, 4, heads, window=window), IN_ROW)
    assert torch.equal(other.found(first, tokens), text.whole()[first : first + tokens])


def test_failed_key_fails_later_rows_alone() -> None:
    text = Text(0, 100, Form(), IN_ROW)
    text.cache[0, 2, 1, 6] = torch.nan
    found = text.whole()
    assert found[:70].isfinite().all()
    assert found[70:].isnan().all()
