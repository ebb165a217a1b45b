"""Products with weights in groups equal those with the dequantized weights."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.pytorch.generation.weights.device_linear import DeviceGroupLinear, has_kernel
from frameworks.pytorch.generation.weights.group_weights import GroupWeights
from tests.support.kernel_device import IS_INTERPRETED, KERNEL_DEVICE

pytest.importorskip("triton", reason="Triton has packages for Linux only")

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    *([] if IS_INTERPRETED else [pytest.mark.gpu]),
]

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Of the largest result: one rounding of the dtype, and float32 sums."""


def weights_of(
    outputs: int, groups: int, group: int, bits: int, has_shift: bool, seed: int, is_float: bool = False
) -> GroupWeights:
    numbers = torch.Generator().manual_seed(seed)
    low, high = (-8, 8) if bits == 4 else (-128, 128)
    values = torch.randint(low, high, (outputs, groups * group), generator=numbers, dtype=torch.int8)
    if is_float:
        # All numbers but NaN, also those below the least normal one.
        values = torch.where(values & 0x7F == 0x7F, torch.zeros_like(values), values).view(torch.float8_e4m3fn)
    scale, shift = (torch.rand(outputs, groups, generator=numbers) / 50 for _ in range(2))
    on_device = (values.to(KERNEL_DEVICE), scale.to(KERNEL_DEVICE), shift.to(KERNEL_DEVICE) if has_shift else None)
    return GroupWeights(*on_device, bits, group)


@settings(max_examples=20, deadline=None)
@given(
    shape=st.tuples(st.sampled_from([0, 1, 3, 17, 65]), st.integers(1, 70), st.integers(1, 3)),
    group=st.sampled_from([16, 32, 64, 96, 128]),
    kind=st.sampled_from([(4, False), (8, False), (8, True)]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    has_shift=st.booleans(),
    has_bias=st.booleans(),
)
def test_products_equal_dense_ones(
    shape: tuple[int, int, int],
    group: int,
    kind: tuple[int, bool],
    dtype: torch.dtype,
    has_shift: bool,
    has_bias: bool,
) -> None:
    rows, outputs, groups = shape
    bits, is_float = kind
    groups *= 2 if bits == 4 else 1
    weights = weights_of(outputs, groups, group, bits, has_shift, rows + outputs, is_float)
    assert has_kernel(weights)
    states = torch.randn(rows, weights.inputs, generator=torch.Generator().manual_seed(1)).to(dtype).to(KERNEL_DEVICE)
    bias = torch.linspace(-1, 1, outputs).to(dtype).to(KERNEL_DEVICE) if has_bias else None
    expected = states.double() @ weights.dense(torch.float64).t() + (0 if bias is None else bias.double())
    ours = DeviceGroupLinear(weights, bias)(states)
    assert ours.dtype == dtype
    assert ours.shape == (rows, outputs)
    largest = float(expected.abs().max()) if rows else 0.0
    # With many rows the dequantized weights are rounded to the dtype, too.
    times = 4 if rows > 64 else 1
    assert torch.allclose(ours.double(), expected, rtol=0, atol=times * TOLERANCE[dtype] * max(1.0, largest))


def test_all_numbers_of_float8_are_exact() -> None:
    """Also in float16, which holds each of them."""
    values = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn).to(KERNEL_DEVICE)
    is_number = ~torch.isnan(values.float())
    values = torch.where(is_number, values.view(torch.uint8), 0).view(torch.float8_e4m3fn).view(16, 16)
    weights = GroupWeights(values, torch.ones(16, 1, device=KERNEL_DEVICE), None, 8, 16)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        rows = torch.eye(16, device=KERNEL_DEVICE).to(dtype)
        for each in (rows, rows.repeat(5, 1)):
            assert torch.equal(DeviceGroupLinear(weights)(each)[:16].float(), values.float().t())
    assert DeviceGroupLinear(weights).held_bytes == 256 + 16 * 2


def test_rows_may_have_any_strides() -> None:
    weights = weights_of(5, 2, 32, 8, has_shift=False, seed=0)
    states = torch.randn(64, 7, generator=torch.Generator().manual_seed(1)).to(KERNEL_DEVICE).t()
    linear = DeviceGroupLinear(weights)
    assert torch.equal(linear(states), linear(states.contiguous()))


def test_weights_keep_their_bits() -> None:
    for bits in (4, 8):
        weights = weights_of(64, 4, 32, bits, has_shift=True, seed=0)
        narrow = GroupWeights(weights.values, weights.scale.half(), weights.shift, bits, 32)
        linear = DeviceGroupLinear(narrow)
        assert linear.held_bytes == 64 * 128 * bits // 8 + 64 * 4 * (2 + 4)


@pytest.mark.parametrize(("inputs", "group", "bits"), [(72, 8, 8), (96, 96, 4), (100, 100, 8)])
def test_other_groups_have_no_kernel(inputs: int, group: int, bits: int) -> None:
    scale = torch.ones(2, inputs // group)
    assert not has_kernel(GroupWeights(torch.zeros(2, inputs, dtype=torch.int8), scale, None, bits, group))
