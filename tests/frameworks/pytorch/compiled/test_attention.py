"""Compiled attention over blocks equals torch's attention in float64."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.pytorch.generation.kv_cache import BLOCK_TOKENS
from tests.frameworks.pytorch.compiled.layers import needs_vectors, random

pytestmark = [pytest.mark.isa, needs_vectors]

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# Sums of up to 400 products in float32, of numbers that are rounded as those of the reference.
TOLERANCE = 2e-6
BLOCKS = 16
_SCALE = 0.25


@dataclass(frozen=True)
class Form:
    """`group`: query heads for a head of keys, of which `heads` are computed at once."""

    head_size: int = 16
    group: int = 2
    heads: int = 2
    dtype: torch.dtype = torch.float32
    window: int = 0


class Text:
    """A text of one head of keys, in a cache of two, and its queries."""

    def __init__(self, start: int, count: int, form: Form, order: list[int], seed: int = 0) -> None:
        """`order`: of the blocks. All other numbers of the cache are large."""
        self.start, self.form = start, form
        length = start + count
        self.queries = random(count, form.group, form.head_size, seed=seed)
        self.keys, self.values = (
            random(length, form.head_size, seed=seed + number).to(form.dtype) for number in (1, 2)
        )
        self.cache = torch.full((2, BLOCKS, 2, BLOCK_TOKENS * form.head_size), 1e4, dtype=form.dtype)
        self.blocks = torch.tensor(order[: -(-length // BLOCK_TOKENS)])
        # As KeyValueCache has them on a CPU.
        keys = self.cache[0].view(BLOCKS, 2, form.head_size, BLOCK_TOKENS).transpose(2, 3)
        values = self.cache[1].view(BLOCKS, 2, BLOCK_TOKENS, form.head_size)
        for states, given_ in ((keys, self.keys), (values, self.values)):
            for position, row in enumerate(given_):
                states[order[position // BLOCK_TOKENS], 1, position % BLOCK_TOKENS] = row

    def found(self, first: int, tokens: int) -> torch.Tensor:
        """Return what one tile computes: [tokens, heads of a group, head size]."""
        form = self.form
        attention, region = compiled()
        out = torch.full_like(self.queries, torch.nan)
        room = torch.full((attention.room_bytes(form.head_size),), 255, dtype=torch.uint8)
        token_bytes = 4 * form.group * form.head_size
        keys, values = (states[0, 1].data_ptr() for states in self.cache)
        for head in range(0, form.group, form.heads):
            offset = first * token_bytes + 4 * head * form.head_size
            region.arguments[3:] = [
                self.queries.data_ptr() + offset,
                out.data_ptr() + offset,
                room.data_ptr(),
                *(tokens, min(form.heads, form.group - head), self.start + first, form.window),
                *(form.head_size, token_bytes, token_bytes),
                *(keys, values, self.blocks.data_ptr()),
                *(self.cache.stride(1) * self.cache.element_size(), KINDS[form.dtype]),
            ]
            region.run(1)
        return out[first : first + tokens]

    def whole(self) -> torch.Tensor:
        """Return all rows, computed in the tiles of a step."""
        count, tokens = len(self.queries), compiled()[0].tile_tokens(self.form.heads)
        return torch.cat([self.found(first, min(tokens, count - first)) for first in range(0, count, tokens)])

    def expected(self) -> torch.Tensor:
        """Return torch's result in float64."""
        queries = self.queries.double().transpose(0, 1)
        own = torch.arange(self.start, len(self.keys))[:, None]
        other = torch.arange(len(self.keys))
        mask = (other <= own) & (other > own - (self.form.window or len(self.keys)))
        keys, values = (each.double().expand(self.form.group, -1, -1) for each in (self.keys, self.values))
        seen = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=_SCALE)
        return seen.transpose(0, 1)


@cache
def compiled() -> tuple[Any, Any]:
    """Return the module, and a region that attends once."""
    from frameworks.pytorch.compiled import attention
    from frameworks.pytorch.compiled.attention import attend
    from frameworks.pytorch.compiled.jit import address_of
    from frameworks.pytorch.compiled.parallel import Region

    def attend_once(arguments: Any) -> None:
        attend(
            arguments[3],
            arguments[4],
            arguments[5],
            (arguments[6], arguments[7], arguments[8], arguments[9]),
            (arguments[10], arguments[11], arguments[12]),
            (arguments[13], arguments[14], arguments[15], arguments[16], arguments[17]),
            _SCALE,
        )

    return attention, Region(address_of(attend_once), 15)


IN_ROW = list(range(BLOCKS))


def check(text: Text) -> None:
    expected = text.expected()
    assert float((text.whole() - expected).abs().max()) < TOLERANCE * max(1.0, float(expected.abs().max()))


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
