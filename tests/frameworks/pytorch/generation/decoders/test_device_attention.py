"""The attention of kernels equals torch's attention over contiguous keys and values."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frameworks.pytorch.generation.decoders.attention_cases import (
    IN_ROW,
    MIXED,
    SCATTERED,
    Case,
    Form,
    Part,
    check,
)
from tests.support.axes import one_axis_at_a_time
from tests.support.kernel_device import IS_INTERPRETED, KERNEL_DEVICE

pytest.importorskip("triton", reason="Triton has packages for Linux only")

from frameworks.pytorch.device_kernels.decode_attention import AttentionScores, DecodeAttention
from frameworks.pytorch.device_kernels.prefill_attention import attend_prefills, tile_of

# The interpreter computes with numpy, which warns of infinite numbers and NaN.
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    *([] if IS_INTERPRETED else [pytest.mark.gpu]),
]

KERNELS = Form(has_kernels=True)


@pytest.mark.parametrize(
    ("dtype", "window", "softcap", "order"),
    one_axis_at_a_time([torch.float32, torch.float16, torch.bfloat16], [None, 1, 33], [None, 3.0], [IN_ROW, SCATTERED]),
)
def test_forms_match_reference(dtype: torch.dtype, window: int | None, softcap: float | None, order: list[int]) -> None:
    check(Case(MIXED, replace(KERNELS, dtype=dtype, window=window, softcap=softcap), order))


@pytest.mark.parametrize(("heads", "group", "head_size"), [(1, 1, 8), (1, 8, 24), (3, 5, 64), (4, 1, 80)])
def test_head_groups_match_reference(heads: int, group: int, head_size: int) -> None:
    check(Case(MIXED, Form(heads, group, head_size, has_kernels=True), SCATTERED))


@pytest.mark.parametrize("window", [None, 100])
def test_long_contexts_match_reference(window: int | None) -> None:
    """Decodes are divided into splits, and prompts into tiles."""
    parts = [Part(1200, 1), Part(3, 1), Part(513, 100)]
    check(Case(parts, Form(1, 1, 16, window=window, has_kernels=True), SCATTERED))


def test_scale_of_layer_is_applied() -> None:
    check(Case(MIXED, replace(KERNELS, softcap=3.0), IN_ROW), scale=0.3)


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 5_000) | st.sampled_from([0, 1, 31, 32, 33]), min_size=1, max_size=3),
    window=st.sampled_from([0, 0, 7, 64, 1000]),
    splits=st.sampled_from([1, 2, 8]),
    has_sinks=st.booleans(),
    has_slopes=st.booleans(),
    is_float8=st.booleans(),
    seed=st.integers(0, 100),
)
def test_decodes_of_any_length(
    lengths: list[int], window: int, splits: int, has_sinks: bool, has_slopes: bool, is_float8: bool, seed: int
) -> None:
    """With sinks, slopes, padding of length 0, and blocks in any order; other blocks are NaN."""
    numbers = torch.Generator().manual_seed(seed)
    heads, group, size, tokens = 1, 3, 16, 32
    needed = [-(-length // tokens) for length in lengths]
    order = torch.randperm(sum(needed) + 3, generator=numbers).tolist()
    table = torch.full((max(needed) + 1, len(lengths)), 10**6, dtype=torch.int32)
    keys = torch.full((sum(needed) + 3, heads, tokens, size), torch.nan)
    values = keys.clone()
    query = torch.randn(len(lengths), heads * group, size, generator=numbers)
    sinks = torch.randn(heads * group, generator=numbers)
    slopes = torch.rand(heads * group, generator=numbers) / 50
    expected = torch.zeros_like(query)
    for number, length in enumerate(lengths):
        own_keys, own_values = (torch.randn(length, heads, size, generator=numbers) for _ in range(2))
        if is_float8:
            own_keys, own_values = (each.to(torch.float8_e4m3fn).float() for each in (own_keys, own_values))
        blocks = [order.pop() for _ in range(needed[number])]
        table[: len(blocks), number] = torch.tensor(blocks, dtype=torch.int32)
        for position in range(length):
            keys[blocks[position // tokens], :, position % tokens] = own_keys[position]
            values[blocks[position // tokens], :, position % tokens] = own_values[position]
        if not length:
            continue
        scores = torch.einsum("hd,td->ht", query[number].double(), own_keys[:, 0].double()) * size**-0.5
        positions = torch.arange(length)
        if has_slopes:
            scores += slopes[:, None] * (positions - (length - 1))
        if window:
            scores[:, positions < length - window] = -torch.inf
        if has_sinks:
            scores = torch.cat((scores, sinks[:, None].double()), 1)
        weights = torch.softmax(scores, 1)[:, :length]
        expected[number] = (weights @ own_values[:, 0].double()).float()
    attention = DecodeAttention(heads, group, size, torch.device(KERNEL_DEVICE), num_processors=12)
    how = AttentionScores(
        size**-0.5,
        window,
        slopes=slopes.to(KERNEL_DEVICE) if has_slopes else None,
        sinks=sinks.to(KERNEL_DEVICE) if has_sinks else None,
    )
    if is_float8:
        keys, values = (each.to(torch.float8_e4m3fn).view(torch.uint8) for each in (keys, values))
    query, keys, values, table = (each.to(KERNEL_DEVICE) for each in (query, keys, values, table))
    on_device = torch.tensor(lengths, dtype=torch.int32).to(KERNEL_DEVICE)
    attended = torch.full_like(query, torch.nan)
    for _ in range(2):
        # The second launch finds the buffers as the first one left them.
        attention.attend(query, keys, values, table.t(), on_device, how, splits, attended)
        # Beside float8 the weights of the softmax are rounded to float16.
        assert torch.allclose(attended.cpu(), expected, atol=3e-3 if is_float8 else 2e-5)


@pytest.mark.parametrize("is_float8", [False, True])
def test_prefill_with_sinks_and_slopes(is_float8: bool) -> None:
    numbers = torch.Generator().manual_seed(3)
    heads, size, tokens, start, count = 2, 16, 32, 45, 70
    length = start + count
    own_keys, own_values = (torch.randn(length, 1, size, generator=numbers) for _ in range(2))
    if is_float8:
        own_keys, own_values = (each.to(torch.float8_e4m3fn).float() for each in (own_keys, own_values))
    keys = torch.full((6, 1, tokens, size), torch.nan)
    values = keys.clone()
    table = torch.tensor([[5, 0, 3, 1]], dtype=torch.int32)
    for position in range(length):
        keys[table[0, position // tokens], :, position % tokens] = own_keys[position]
        values[table[0, position // tokens], :, position % tokens] = own_values[position]
    query = torch.randn(count, heads, size, generator=numbers)
    sinks, slopes = torch.tensor([0.5, -1.0]), torch.tensor([0.02, 0.1])
    own, other = torch.arange(start, length)[:, None], torch.arange(length)
    scores = torch.einsum("qhd,td->hqt", query.double(), own_keys[:, 0].double()) * size**-0.5
    scores += slopes[:, None, None] * (other - own)
    scores = scores.masked_fill(other > own, -torch.inf)
    scores = torch.cat((scores, sinks[:, None, None].expand(-1, count, 1).double()), 2)
    expected = (torch.softmax(scores, 2)[:, :, :length] @ own_values[:, 0].double()).transpose(0, 1)
    if is_float8:
        keys, values = (each.to(torch.float8_e4m3fn).view(torch.uint8) for each in (keys, values))
    query, keys, values, table = (each.to(KERNEL_DEVICE) for each in (query, keys, values, table))
    first, num_tokens, before = (
        torch.tensor([each], dtype=torch.int32, device=KERNEL_DEVICE) for each in (0, count, start)
    )
    attended = torch.full_like(query, torch.nan)
    how = AttentionScores(size**-0.5, slopes=slopes.to(KERNEL_DEVICE), sinks=sinks.to(KERNEL_DEVICE))
    attend_prefills(query, keys, values, table, first, num_tokens, before, count, how, attended)
    assert (attended.cpu().double() - expected).abs().max() < (3e-3 if is_float8 else 2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nan_of_float8_stays_in_its_text(dtype: torch.dtype) -> None:
    keys = torch.randn(2, 1, 32, 16, generator=torch.Generator().manual_seed(0))
    keys[1, 0, 3] = torch.nan
    packed = keys.to(torch.float8_e4m3fn).view(torch.uint8).to(KERNEL_DEVICE)
    query = torch.ones(2, 1, 16, dtype=dtype, device=KERNEL_DEVICE)
    table, lengths = (torch.tensor(each, dtype=torch.int32, device=KERNEL_DEVICE) for each in ([[0], [1]], [9, 9]))
    attended = torch.zeros_like(query)
    attention = DecodeAttention(1, 1, 16, torch.device(KERNEL_DEVICE), num_processors=12)
    attention.attend(query, packed, packed, table, lengths, AttentionScores(0.25), 1, attended)
    assert torch.isfinite(attended[0]).all()
    assert attended[1].isnan().all()


def test_nan_of_a_sequence_stays_there() -> None:
    case = Case([Part(40, 1), Part(70, 1), Part(0, 40), Part(10, 20)], KERNELS, IN_ROW)
    expected = case.expected()
    case.queries[0].fill_(torch.nan)
    case.queries[2].fill_(torch.inf)
    ours = case.ours()
    assert ours[0].isnan().all()
    for number in (1, 3):
        assert (ours[number].double() - expected[number]).abs().max() < 2e-5


def test_splits_occupy_the_device() -> None:
    attention = DecodeAttention(2, 1, 8, torch.device("cpu"), num_processors=8)
    assert [attention.num_splits(sequences, 100) for sequences in (1, 2, 4, 8, 100)] == [8, 4, 2, 1, 1]
    assert [attention.num_splits(1, blocks) for blocks in (0, 1, 2, 3, 9)] == [1, 1, 2, 2, 8]


def test_tiles_of_wide_heads_are_smaller() -> None:
    for capability in (8, 9, 10, 12):
        tiles = [tile_of(size, capability) for size in (256, 512, 1024, 2048)]
        assert tiles == sorted(tiles, reverse=True)
