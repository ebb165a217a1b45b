"""The CPU's products are chosen by measurement, and int8 ranges by what the CPU adds up exactly."""

from collections.abc import Callable, Iterator

import pytest
import torch

from frameworks.pytorch import kernels
from frameworks.pytorch.kernels import (
    LARGEST_INT8,
    LARGEST_INT8_WITHOUT_VNNI,
    Int8Kernel,
    OneDnnInt8Kernel,
    TorchInt8Kernel,
    int8_kernel,
    largest_exact_weight,
    multiplies_bf16,
    packs,
)

pytestmark = pytest.mark.isa


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float, float], None]]:
    """`measured(first_s, second_s)`: the seconds of the products that are compared; no choice outlives the test."""
    chosen = (packs, multiplies_bf16, int8_kernel)
    for each in chosen:
        each.cache_clear()
    yield lambda *seconds: monkeypatch.setattr(kernels, "_seconds", lambda *_: seconds)
    for each in chosen:
        each.cache_clear()


class SaturatingKernel(Int8Kernel):
    """Adds pairs of products in 16 bits, as x86 without VNNI does: rows are shifted to 0 … 255."""

    name = "saturating"

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        return weight

    def multiply(self, rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        products = (rows + 128)[:, None, :] * weight.float()
        products = torch.nn.functional.pad(products, (0, products.shape[-1] % 2))
        pairs = products.view(*products.shape[:2], -1, 2).sum(-1).clamp(-(2**15), 2**15 - 1)
        shift: torch.Tensor = 128 * weight.float().sum(1)
        return (pairs.sum(-1) - shift) * scale


class ExactKernel(SaturatingKernel):
    def multiply(self, rows: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return rows @ weight.float().t() * scale


def random_product(kernel: Int8Kernel) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    largest = kernel.largest_weight
    weight = torch.randint(-largest, largest + 1, (51, 45), dtype=torch.int8, generator=generator)
    rows = torch.randint(-127, 128, (7, 45), generator=generator).float()
    scale = torch.rand(51, generator=generator)
    return kernel.multiply(rows.clone(), kernel.pack(weight), scale), rows @ weight.float().t() * scale


class TestInt8Kernel:
    @pytest.mark.parametrize(
        ("kind", "largest"), [(SaturatingKernel, LARGEST_INT8_WITHOUT_VNNI), (ExactKernel, LARGEST_INT8)]
    )
    def test_range_reduced_where_sums_saturate(self, kind: type[Int8Kernel], largest: int) -> None:
        assert largest_exact_weight(kind()) == largest

    def test_reduced_range_is_largest_exact_one(self) -> None:
        assert kernels._is_exact(SaturatingKernel(), LARGEST_INT8_WITHOUT_VNNI)
        assert not kernels._is_exact(SaturatingKernel(), LARGEST_INT8_WITHOUT_VNNI + 1)

    def test_kernels_give_the_same_bits(self) -> None:
        weights = {}
        for kernel in (TorchInt8Kernel(64), OneDnnInt8Kernel(64)):
            try:
                weights[kernel.name], expected = random_product(kernel)
            except (RuntimeError, AttributeError):
                continue
            assert torch.equal(weights[kernel.name], expected)
        assert weights

    def test_chosen_kernel_exact_in_its_range(self) -> None:
        kernel = int8_kernel("cpu")
        assert kernels._is_exact(kernel, kernel.largest_weight)
        found, expected = random_product(kernel)
        assert torch.equal(found, expected)

    @pytest.mark.parametrize(("plain_s", "packed_s", "name"), [(2.0, 1.0, "onednn"), (1.0, 2.0, "torch")])
    def test_fastest_kernel_chosen(
        self, measured: Callable[[float, float], None], plain_s: float, packed_s: float, name: str
    ) -> None:
        measured(plain_s, packed_s)
        if int8_kernel("cpu").name != name:
            pytest.skip("torch has no oneDNN product of int8 on this CPU")

    def test_missing_operator_leaves_torch_kernel(
        self, measured: Callable[[float, float], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise RuntimeError("no such operator")

        measured(2.0, 1.0)
        monkeypatch.setattr(OneDnnInt8Kernel, "pack", refuse)
        assert int8_kernel("cpu").name == "torch"

    def test_accelerator_uses_whole_range(self) -> None:
        kernel = int8_kernel("cuda")
        assert (kernel.name, kernel.largest_weight) == ("torch", LARGEST_INT8)


class TestPacking:
    @pytest.mark.parametrize(("packed_s", "expected"), [(0.5, True), (1.4, True), (1.6, False)])
    def test_slow_packed_product_avoided(
        self, measured: Callable[[float, float], None], packed_s: float, expected: bool
    ) -> None:
        measured(1.0, packed_s)
        assert packs(torch.float32) == (expected and torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]

    def test_weights_without_instructions_not_packed(
        self, measured: Callable[[float, float], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_: torch.Tensor) -> None:
            raise RuntimeError("bf16 path needs avx512bw")

        measured(1.0, 0.5)
        monkeypatch.setattr(kernels, "pack", refuse)
        assert not packs(torch.bfloat16)

    def test_float16_not_packed(self, measured: Callable[[float, float], None]) -> None:
        measured(1.0, 0.5)
        assert not packs(torch.float16)

    def test_build_without_onednn_packs_nothing(
        self, measured: Callable[[float, float], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        measured(1.0, 0.5)
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        assert not packs(torch.float32)
        assert not multiplies_bf16()

    def test_packed_weights_really_pack(self) -> None:
        for dtype in (torch.float32, torch.bfloat16):
            if packs(dtype):
                kernels.pack(torch.zeros(4, 4, dtype=dtype))


class TestBfloat16:
    @pytest.mark.parametrize(
        ("has_instructions", "narrow_s", "expected"), [(True, 0.5, True), (True, 1.2, False), (False, 0.5, False)]
    )
    def test_bf16_needs_instructions_and_speed(
        self,
        measured: Callable[[float, float], None],
        monkeypatch: pytest.MonkeyPatch,
        has_instructions: bool,
        narrow_s: float,
        expected: bool,
    ) -> None:
        measured(1.0, narrow_s)
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_instructions)
        assert multiplies_bf16() == expected


def test_measuring_keeps_thread_count() -> None:
    before = torch.get_num_threads()
    first_s, second_s = kernels._seconds(lambda: None, lambda: torch.ones(100_000).sum())
    assert 0 < first_s < second_s
    assert torch.get_num_threads() == before
