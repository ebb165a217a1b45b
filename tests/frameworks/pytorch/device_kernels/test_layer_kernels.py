"""The kernels of a layer equal the operators of torch that they replace."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.kernel_device import IS_INTERPRETED, KERNEL_DEVICE

pytest.importorskip("triton", reason="Triton has packages for Linux only")

from frameworks.pytorch.device_kernels.layer_kernels import gated, norm, rotate_and_write, write

# The interpreter computes with numpy, which warns of infinite numbers and NaN.
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    *([] if IS_INTERPRETED else [pytest.mark.gpu]),
]

DTYPES = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
EXAMPLES = settings(max_examples=15, deadline=None)
EPSILON = 1e-5


def numbers(seed: int, *sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    drawn = torch.randn(sizes, generator=torch.Generator().manual_seed(seed))
    return drawn.to(dtype).to(KERNEL_DEVICE)


def are_close(ours: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether they differ by the rounding of the dtype only; the largest value has no other."""
    scale = max(1.0, float(expected.double().abs().max())) if expected.numel() else 1.0
    return torch.allclose(ours.double(), expected.double(), rtol=0, atol=TOLERANCE[dtype] * scale)


@EXAMPLES
@given(rows=st.integers(0, 5), size=st.integers(1, 200), dtype=DTYPES, has_residual=st.booleans())
def test_norm_equals_torch(rows: int, size: int, dtype: torch.dtype, has_residual: bool) -> None:
    states, weight = numbers(1, rows, size, dtype=dtype), numbers(2, size, dtype=dtype)
    residual = numbers(3, rows, size, dtype=dtype) if has_residual else None
    whole = states if residual is None else states + residual
    expected = torch.nn.functional.rms_norm(whole.double(), (size,), weight.double(), EPSILON)
    assert are_close(norm(states, weight, EPSILON, residual), expected, dtype)
    if residual is not None:
        # The interpreter truncates to bfloat16 where a GPU rounds.
        assert are_close(residual, whole, dtype)


@EXAMPLES
@given(
    rows=st.integers(1, 5),
    groups=st.integers(1, 3),
    heads=st.integers(1, 3),
    half=st.integers(1, 40),
    dtype=DTYPES,
    has_norms=st.booleans(),
    cached=st.sampled_from([None, torch.float16]),
)
def test_rotation_equals_torch(
    rows: int, groups: int, heads: int, half: int, dtype: torch.dtype, has_norms: bool, cached: torch.dtype | None
) -> None:
    """Row 1 is padding, which is written nowhere."""
    query_heads, size = groups * heads, 2 * half
    states = numbers(1, rows, query_heads + 2 * heads, size, dtype=dtype)
    angles = numbers(2, rows, half) * 5
    norms = (numbers(3, size, dtype=dtype), numbers(4, size, dtype=dtype)) if has_norms else None
    keys = torch.zeros(rows, heads, 32, size, dtype=cached or dtype, device=KERNEL_DEVICE)
    values = torch.zeros_like(keys)
    before = states.double()
    turned = before[:, : query_heads + heads].clone()
    if norms is not None:
        for own, weight in zip((turned[:, :query_heads], turned[:, query_heads:]), norms, strict=True):
            own.copy_(torch.nn.functional.rms_norm(own, (size,), weight.double(), EPSILON))
    wide = torch.cat((angles, angles), 1)[:, None].double()
    sine = torch.cat((-angles, angles), 1)[:, None].double().sin()
    turned = turned * wide.cos() + turned.roll(half, -1) * sine
    blocks = torch.arange(rows, dtype=torch.int32).flip(0)
    blocks[1:2] = -1
    offsets = (torch.arange(rows, dtype=torch.int32) * 7 + 3) % 32
    on_device = (blocks.to(KERNEL_DEVICE), offsets.to(KERNEL_DEVICE))
    rotate_and_write(states, angles.cos(), angles.sin(), norms, EPSILON, keys, values, *on_device)
    stored = torch.float16 if cached else dtype
    assert are_close(states[:, :query_heads], turned[:, :query_heads], dtype)
    expected_keys, expected_values = keys.double() * 0, keys.double() * 0
    for row, (block, offset) in enumerate(zip(blocks.tolist(), offsets.tolist(), strict=True)):
        if block >= 0:
            expected_keys[block, :, offset] = turned[row, query_heads:]
            expected_values[block, :, offset] = before[row, query_heads + heads :]
    for ours, expected in ((keys, expected_keys), (values, expected_values)):
        assert are_close(ours, expected, dtype if dtype == torch.bfloat16 else stored)


def test_write_stores_rows_of_any_strides() -> None:
    rows, heads, size = 4, 3, 10
    states = numbers(1, 2 * heads, rows, size).transpose(0, 1)
    keys = torch.zeros(5, heads, 32, size, device=KERNEL_DEVICE)
    values = torch.zeros_like(keys)
    blocks, offsets = torch.tensor([4, -1, 0, 4], dtype=torch.int32), torch.tensor([0, 1, 31, 1], dtype=torch.int32)
    write(states, keys, values, blocks.to(KERNEL_DEVICE), offsets.to(KERNEL_DEVICE))
    expected = torch.zeros(2, 5, heads, 32, size, device=KERNEL_DEVICE)
    for row in (0, 2, 3):
        expected[0, blocks[row], :, offsets[row]] = states[row, :heads]
        expected[1, blocks[row], :, offsets[row]] = states[row, heads:]
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])


def written_as_float8(states: torch.Tensor) -> torch.Tensor:
    """Return numbers as a cache of float8 holds them, in float32."""
    rows = states.reshape(1, 1, -1).to(KERNEL_DEVICE)
    keys = torch.zeros(1, 1, 32, rows.shape[2], dtype=torch.uint8, device=KERNEL_DEVICE)
    values = torch.zeros_like(keys)
    where = torch.zeros(1, dtype=torch.int32, device=KERNEL_DEVICE)
    write(rows.repeat(1, 2, 1), keys, values, where, where)
    assert torch.equal(keys, values)
    assert not keys[:, :, 1:].any()
    return keys[0, 0, 0].view(torch.float8_e4m3fn).float().cpu()


@EXAMPLES
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=64), exponent=st.integers(-14, 9))
def test_float8_is_rounded_as_by_torch(bits: list[int], exponent: int) -> None:
    """Any bits of float32, and numbers near those of float8: to the nearest, ties to even, at most 448."""
    any_bits = torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32)
    near = torch.tensor([each % 4096 / 2048 for each in bits], dtype=torch.float32) * 2.0**exponent
    for states in (any_bits, near, -near):
        expected = states.clamp(-448, 448).to(torch.float8_e4m3fn).float()
        expected = torch.where(torch.isfinite(states), expected, torch.nan)
        torch.testing.assert_close(written_as_float8(states), expected, rtol=0, atol=0, equal_nan=True)


def test_all_numbers_of_float8_are_kept() -> None:
    numbers = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn).float()
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found = written_as_float8(numbers.to(dtype))
        torch.testing.assert_close(found, numbers, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit()[numbers == 0], numbers.signbit()[numbers == 0])


def test_rotation_writes_float8() -> None:
    heads = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(2)).to(KERNEL_DEVICE)
    angles = torch.rand(3, 8, generator=torch.Generator().manual_seed(3)).to(KERNEL_DEVICE)
    blocks = torch.tensor([1, -1, 0], dtype=torch.int32, device=KERNEL_DEVICE)
    caches = []
    for dtype in (torch.float32, torch.uint8):
        keys = torch.zeros(2, 1, 32, 16, dtype=dtype, device=KERNEL_DEVICE)
        values = torch.zeros_like(keys)
        rotate_and_write(heads.clone(), angles.cos(), angles.sin(), None, 1e-6, keys, values, blocks, blocks.abs())
        caches.append((keys, values))
    for wide, narrow in zip(*caches, strict=True):
        assert torch.equal(wide.to(torch.float8_e4m3fn).float(), narrow.view(torch.float8_e4m3fn).float())
        assert wide.abs().sum() > 0


@EXAMPLES
@given(rows=st.integers(0, 4), size=st.integers(1, 1100), dtype=DTYPES, is_gelu=st.booleans())
def test_gate_equals_torch(rows: int, size: int, dtype: torch.dtype, is_gelu: bool) -> None:
    joined = numbers(1, rows, 2 * size, dtype=dtype) * 3
    gate, up = joined.double().chunk(2, 1)
    activated = torch.nn.functional.gelu(gate, approximate="tanh") if is_gelu else torch.nn.functional.silu(gate)
    assert are_close(gated(joined, is_gelu=is_gelu), activated * up, dtype)


def test_gate_of_large_numbers_is_finite() -> None:
    joined = torch.tensor([[-1e4, 1e4, -200.0, 1.0, 1.0, 1.0]], device=KERNEL_DEVICE)
    for is_gelu in (False, True):
        assert gated(joined, is_gelu=is_gelu).tolist() == [[0.0, 1e4, 0.0]]
