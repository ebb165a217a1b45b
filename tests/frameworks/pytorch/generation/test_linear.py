"""Products with weights that were packed, or made int8, are those of plain ones."""

import pytest
import torch

from frameworks.pytorch.generation.int8_linear import Int8Product, make_int8_linear
from frameworks.pytorch.generation.linear import Linear, PackedLinear, PlainLinear, can_pack, make_linear

INPUTS, OUTPUTS = 48, 80
ROWS = [1, 2, 16, 65]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def weights(dtype: torch.dtype, *, has_bias: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    return random(OUTPUTS, INPUTS, seed=1, dtype=dtype), random(OUTPUTS, seed=2, dtype=dtype) if has_bias else None


def off(ours: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest error by the largest number."""
    return float((ours.double() - expected).abs().max() / expected.abs().max())


def errors(linear: Linear, weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> list[float]:
    """Of the product, and of each of what may follow it, against double precision."""
    given = random(rows, INPUTS, seed=3, dtype=weight.dtype)
    other = random(rows, OUTPUTS, seed=4, dtype=weight.dtype)
    before = given.clone(), other.clone()
    product = torch.nn.functional.linear(given.double(), weight.double(), None if bias is None else bias.double())
    found = [linear(given), linear.silu(given), linear.times(given, other), linear.plus(given, other)]
    expected = [product, torch.nn.functional.silu(product), product * other.double(), product + other.double()]
    assert all(each.dtype == weight.dtype and each.shape == (rows, OUTPUTS) for each in found)
    assert torch.equal(given, before[0])
    assert torch.equal(other, before[1])
    return [off(ours, each) for ours, each in zip(found, expected, strict=True)]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [PlainLinear, PackedLinear])
def test_plain_and_packed(
    kind: type[PlainLinear | PackedLinear], dtype: torch.dtype, has_bias: bool, rows: int
) -> None:
    weight, bias = weights(dtype, has_bias=has_bias)
    if kind is PackedLinear and not can_pack(weight):
        pytest.skip("this machine has no order of its own for these weights")
    assert max(errors(kind(weight, bias), weight, bias, rows)) < TOLERANCE[dtype]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_int8_is_near(rows: int, has_bias: bool) -> None:
    weight, bias = weights(torch.float32, has_bias=has_bias)
    found = errors(Int8Product(weight, bias), weight, bias, rows)
    assert max(found) < 0.02
    assert min(found) > 1e-6, "it is int8 indeed"


def test_an_int8_row_depends_on_no_other() -> None:
    weight, bias = weights(torch.float32, has_bias=True)
    linear = Int8Product(weight, bias)
    given = random(3, INPUTS, seed=3)
    given[1] *= 1000
    alone = torch.cat([linear(row[None]) for row in given])
    assert torch.allclose(linear(given), alone, rtol=1e-5, atol=1e-5)


def test_weights_that_stand_the_other_way_in_memory() -> None:
    weight = random(INPUTS, OUTPUTS, seed=1).t()
    assert not weight.is_contiguous()
    assert max(errors(make_linear(weight, None), weight, None, 4)) < 1e-5


class TestChoice:
    def test_what_onednn_has_an_order_for_is_packed(self) -> None:
        assert can_pack(torch.zeros(4, 4)) == torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        assert isinstance(make_linear(torch.zeros(4, 4), None), PackedLinear) == can_pack(torch.zeros(4, 4))

    def test_float16_is_not(self) -> None:
        assert isinstance(make_linear(torch.zeros(4, 4, dtype=torch.float16), None), PlainLinear)

    @pytest.mark.parametrize("has_instructions", [True, False])
    def test_bfloat16_where_the_machine_multiplies_it(
        self, monkeypatch: pytest.MonkeyPatch, has_instructions: bool
    ) -> None:
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_instructions)
        assert can_pack(torch.zeros(4, 4, dtype=torch.bfloat16)) == has_instructions

    def test_no_onednn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        assert isinstance(make_linear(torch.zeros(4, 4), None), PlainLinear)

    def test_another_device(self) -> None:
        assert not can_pack(torch.zeros(4, 4, device="meta"))

    def test_int8_on_a_cpu_of_any_size(self) -> None:
        assert isinstance(make_int8_linear(random(7, 5, seed=1), None), Int8Product)
