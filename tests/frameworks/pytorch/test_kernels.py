"""The CPU's products of float32 and bfloat16 are chosen by measurement."""

from collections.abc import Callable, Iterator

import pytest
import torch

from frameworks.pytorch import kernels
from frameworks.pytorch.generation.weights.linear import PackedLinear
from frameworks.pytorch.kernels import multiplies_bf16, packs

pytestmark = pytest.mark.isa


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float, float], None]]:
    """`measured(first_s, second_s)`: the seconds of the products that are compared; no choice outlives the test."""
    chosen = (packs, multiplies_bf16)
    for each in chosen:
        each.cache_clear()
    yield lambda *seconds: monkeypatch.setattr(kernels, "_seconds", lambda *_: seconds)
    for each in chosen:
        each.cache_clear()


class TestPacking:
    @pytest.mark.parametrize(("packed_s", "expected"), [(0.5, True), (1.4, True), (1.6, False)])
    def test_slow_packed_matmul_avoided(
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

    @pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
    def test_packed_weights_give_same_matmul(self, dtype: torch.dtype, tolerance: float) -> None:
        """Compared with the product in float64. A dtype that does not pay on this CPU may lack instructions."""
        if not packs(dtype):
            pytest.skip(f"weights of {dtype} are not packed on this CPU")
        generator = torch.Generator().manual_seed(1)
        weight = torch.randn(48, 40, generator=generator).to(dtype)
        rows = torch.randn(3, 40, generator=generator).to(dtype)
        product = PackedLinear(weight)(rows)
        assert product.shape == (3, 48)
        torch.testing.assert_close(product.double(), rows.double() @ weight.double().T, rtol=tolerance, atol=tolerance)


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
