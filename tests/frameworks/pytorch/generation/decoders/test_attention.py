"""Attention over blocks equals torch's attention over contiguous keys and values."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.pytorch import kernels
from frameworks.pytorch.generation.decoders import attention
from frameworks.pytorch.generation.decoders.kv_cache import BLOCK_TOKENS
from frameworks.pytorch.generation.decoders.prefill_attention import attend_in_blocks
from tests.frameworks.pytorch.generation.decoders.attention_cases import (
    BLOCKS,
    IN_ROW,
    MIXED,
    SCATTERED,
    Case,
    Form,
    Part,
    check,
)
from tests.support.axes import one_axis_at_a_time


@pytest.fixture(autouse=True, scope="module")
def _products_of_bf16() -> Iterator[None]:
    """Use products of bfloat16 on every CPU, though not every CPU multiplies it fast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "multiplies_bf16", lambda: True)
        yield


class TestForms:
    @pytest.mark.parametrize(
        ("dtype", "window", "softcap"),
        one_axis_at_a_time([torch.float32, torch.float16, torch.bfloat16], [None, 1, 2, 31, 32, 33, 40], [None, 3.0]),
    )
    def test_dtypes_windows_and_caps_match_reference(
        self, dtype: torch.dtype, window: int | None, softcap: float | None
    ) -> None:
        check(Case(MIXED, Form(dtype=dtype, window=window, softcap=softcap), IN_ROW))

    @pytest.mark.parametrize(("heads", "group"), [(1, 1), (1, 8), (4, 1), (3, 5)])
    @pytest.mark.parametrize("head_size", [8, 24])
    def test_head_groups_match_reference(self, heads: int, group: int, head_size: int) -> None:
        check(Case(MIXED, Form(heads, group, head_size), IN_ROW))

    @pytest.mark.parametrize("softcap", [None, 3.0])
    def test_keys_in_rows_match_reference(self, softcap: float | None) -> None:
        """As on a GPU."""
        for order in (IN_ROW, SCATTERED):
            check(Case(MIXED, Form(softcap=softcap, is_transposed=False), order))

    @pytest.mark.parametrize("window", [None, 40])
    @pytest.mark.parametrize("order", [IN_ROW, IN_ROW[::-1], SCATTERED], ids=["in a row", "backwards", "scattered"])
    def test_scattered_blocks_match_reference(self, order: list[int], window: int | None) -> None:
        check(Case(MIXED, Form(window=window), order))

    @pytest.mark.parametrize("scale", [0.05, 1.0])
    @pytest.mark.parametrize("softcap", [None, 3.0])
    def test_scale_of_layer_is_applied(self, scale: float, softcap: float | None) -> None:
        check(Case(MIXED, Form(softcap=softcap), IN_ROW), scale)

    @pytest.mark.parametrize("parts", [[Part(5, 1)], [Part(5, 1), Part(31, 1)], [Part(5, 1), Part(40, 1)]])
    def test_decode_only_step_matches_reference(self, parts: list[Part]) -> None:
        check(Case(parts, Form(), IN_ROW))

    def test_decode_of_one_block_needs_no_sums(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Blocks may lie anywhere; idle blocks between them are read but not used."""
        monkeypatch.setattr(attention, "masked_bias", lambda dtype: pytest.fail("sums were made"))
        for order in (IN_ROW, IN_ROW[::-1], IN_ROW[::2], SCATTERED):
            check(Case([Part(5, 1), Part(31, 1), Part(0, 1)], Form(), order))

    @pytest.mark.parametrize(
        ("start", "order", "window", "dtype"),
        one_axis_at_a_time(
            [100, 0, 31, 32, 127],
            [IN_ROW, IN_ROW[::-1], SCATTERED],
            [None, 1, 33, 40, 100],
            [torch.float32, torch.float16, torch.bfloat16],
        ),
    )
    def test_single_decode_needs_no_sums(
        self, start: int, order: list[int], window: int | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(attention, "masked_bias", lambda dtype: pytest.fail("sums were made"))
        check(Case([Part(start, 1)], Form(window=window, dtype=dtype), order))

    def test_single_prefill_matches_reference(self) -> None:
        check(Case([Part(0, 70)], Form(), IN_ROW))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize(
        ("length", "scale"), one_axis_at_a_time([48, 2, 32, 33, 47, 49, 255, 256, 257], [None, 1.0])
    )
    def test_whole_prompts_match_reference(self, length: int, dtype: torch.dtype, scale: float | None) -> None:
        """Prompts of medium length use other products in bfloat16, and in a batch."""
        check(Case([Part(0, length), Part(40, 1), Part(0, 40)], Form(2, 3, 24, dtype), IN_ROW), scale)

    def test_bf16_prefill_without_bf16_matmul(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kernels, "multiplies_bf16", lambda: False)
        check(Case([Part(0, 48), Part(40, 1), Part(0, 40)], Form(2, 3, 24, torch.bfloat16), IN_ROW))

    def test_whole_prompt_with_window_matches_reference(self) -> None:
        for window in (99, 100, 101):
            check(Case([Part(0, 100)], Form(dtype=torch.bfloat16, window=window), IN_ROW))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize(
        ("part", "window", "form"),
        one_axis_at_a_time(
            [Part(0, 300), Part(0, 257), Part(0, 1000), Part(300, 64), Part(193, 64), Part(513, 200)],
            [100, None, 1, 64, 128],
            [Form(2, 3, 24), Form(1, 1, 16), Form(3, 1, 8)],
        ),
    )
    def test_long_prompts_match_reference(
        self, part: Part, window: int | None, form: Form, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are computed in blocks, in float32 only with a window."""
        calls: list[int] = []

        def counted(query: torch.Tensor, *more: Any) -> torch.Tensor:
            calls.append(len(query))
            return attend_in_blocks(query, *more)

        monkeypatch.setattr(attention, "attend_in_blocks", counted)
        # Padding rows, and a decode before the prompt.
        check(Case([part, Part(40, 1)], replace(form, dtype=dtype, window=window), SCATTERED))
        assert calls == ([part.num_tokens] if window is not None or dtype == torch.bfloat16 else [])


class TestMemory:
    def test_step_writes_only_its_layer(self) -> None:
        case = Case(MIXED, Form(), SCATTERED)
        before = [(keys.clone(), values.clone()) for keys, values in case.cache.layers]
        case.ours(layer=1)
        assert torch.equal(case.cache.layers[0][0], before[0][0])
        assert torch.equal(case.cache.layers[0][1], before[0][1])
        expected_keys, expected_values = before[1]
        for number, part in enumerate(case.parts):
            for position in range(part.start, part.start + part.num_tokens):
                block, at = part.sequence.blocks[position // BLOCK_TOKENS], position % BLOCK_TOKENS
                expected_keys[block, :, at] = case.keys[number][position]
                expected_values[block, :, at] = case.values[number][position]
        assert torch.equal(case.cache.layers[1][0], expected_keys)
        assert torch.equal(case.cache.layers[1][1], expected_values)

    def test_row_is_independent_of_its_batch(self) -> None:
        """Results agree up to the rounding of another order of sums."""
        case = Case([Part(70, 1), Part(10, 1), Part(33, 1)], Form(), IN_ROW)
        together = case.ours()[0]
        for each in (case.parts, case.keys, case.values, case.queries):
            del each[1:]
        assert torch.allclose(together, case.ours()[0], atol=1e-6)

    def test_float16_scores_do_not_overflow(self) -> None:
        case = Case([Part(40, 1), Part(3, 1), Part(33, 4)], Form(dtype=torch.float16), IN_ROW)
        for queries in case.queries:
            queries.mul_(400)
        assert all(ours.isfinite().all() for ours in case.ours())


lengths = st.builds(Part, start=st.integers(0, 130), num_tokens=st.just(1)) | st.builds(
    Part, start=st.integers(0, 130), num_tokens=st.integers(2, 40)
)


@settings(max_examples=60)
@given(
    parts=st.lists(lengths, min_size=1, max_size=8),
    order=st.permutations(range(BLOCKS)),
    window=st.none() | st.integers(1, 140),
    softcap=st.sampled_from([None, None, 5.0]),
    group=st.integers(1, 3),
    seed=st.integers(0, 10),
)
def test_any_lengths_match_reference(
    parts: list[Part], order: list[int], window: int | None, softcap: float | None, group: int, seed: int
) -> None:
    check(Case(parts, Form(1, group, 8, window=window, softcap=softcap), order, seed))
