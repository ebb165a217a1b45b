"""Test padding, pooling, normalisation and scores against torch."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from frameworks.text.padding import pad
from frameworks.text.pooling import normalize_rows, pool, scores
from frameworks.text.sentence_modules.pooling_module import Pooling
from frameworks.types import Array


class TestPad:
    def test_pad_right_to_longest_text(self) -> None:
        padded = pad([[5, 6, 7], [], [8]], pad_token_id=1)
        assert padded.input_ids.tolist() == [[5, 6, 7], [1, 1, 1], [8, 1, 1]]
        assert padded.attention_mask.tolist() == [[1, 1, 1], [0, 0, 0], [1, 0, 0]]
        assert str(padded.input_ids.dtype) == str(padded.attention_mask.dtype) == "int64"

    def test_pad_to_minimum_length(self) -> None:
        assert pad([[5]], 0, min_length=3).input_ids.tolist() == [[5, 0, 0]]
        assert pad([[5, 6]], 0, min_length=1).input_ids.tolist() == [[5, 6]]

    def test_texts_without_tokens_have_one_column(self) -> None:
        assert pad([[], []], 7).input_ids.tolist() == [[7], [7]]

    def test_pad_without_texts_has_no_rows(self) -> None:
        assert pad([], 0).input_ids.shape == (0, 1)

    def test_token_types_are_padded_with_zero(self) -> None:
        types = pad([[5, 6], [7]], 9, min_length=3, token_type_ids=[[0, 1], [1]]).token_type_ids
        assert types is not None
        assert types.tolist() == [[0, 1, 0], [1, 0, 0]]
        assert pad([[5]], 9).token_type_ids is None


def torch_pool(hidden: Array, mask: Array, pooling: Pooling) -> Array:
    """Pool in torch, text by text without a mask, as the reference."""
    rows = []
    for states, row_mask in zip(torch.from_numpy(hidden).double(), torch.from_numpy(mask).bool(), strict=True):
        tokens = states[row_mask]
        match pooling:
            case "cls":
                rows.append(tokens[0] if len(tokens) else states[0])
            case "mean":
                rows.append(tokens.mean(dim=0) if len(tokens) else torch.zeros(states.shape[1]))
            case "mean_sqrt_len_tokens":
                rows.append(tokens.sum(dim=0) / max(1, len(tokens)) ** 0.5)
            case "weightedmean":
                places = (row_mask.nonzero() + 1).double()
                rows.append((tokens * places).sum(dim=0) / max(1, places.sum()))
            case "lasttoken":
                rows.append(tokens[-1] if len(tokens) else torch.zeros(states.shape[1]))
            case "max":
                rows.append(tokens.amax(dim=0) if len(tokens) else torch.full(states.shape[1:], -1e9))
    result: Array = torch.stack(rows).float().numpy()
    return result


class TestPool:
    def test_several_modes_are_concatenated(self) -> None:
        hidden = np.random.default_rng(1).standard_normal((2, 3, 4), np.float32)
        mask = np.array([[1, 1, 0], [1, 1, 1]])
        parts = [pool(hidden, mask, mode) for mode in ("weightedmean", "cls")]
        np.testing.assert_array_equal(pool(hidden, mask, "weightedmean+cls"), np.concatenate(parts, axis=1))

    @pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean"])
    @given(data=st.data())
    def test_pool_equals_torch(self, pooling: Pooling, data: Any) -> None:
        texts, longest, size = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5)))
        hidden = data.draw(np_st.arrays(np.float32, (texts, longest, size), elements=st.floats(-4, 4, width=32)))
        mask = data.draw(np_st.arrays(np.int64, (texts, longest), elements=st.integers(0, 1)))
        pooled = pool(hidden, mask, pooling)
        assert pooled.dtype == np.float32
        np.testing.assert_allclose(pooled, torch_pool(hidden, mask, pooling), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("pooling", ["mean", "max"])
    def test_pool_ignores_padding(self, pooling: Pooling) -> None:
        hidden = np.array([[[1.0, -5.0], [3.0, -7.0], [9e9, 9e9]]], np.float32)
        mask = np.array([[1, 1, 0]])
        assert pool(hidden, mask, pooling).tolist() == ([[2.0, -6.0]] if pooling == "mean" else [[3.0, -5.0]])

    @pytest.mark.parametrize("pooling", ["mean", "max", "lasttoken"])
    def test_pooled_text_without_tokens_is_finite(self, pooling: Pooling) -> None:
        rows = normalize_rows(pool(np.ones((1, 2, 4), np.float32), np.zeros((1, 2), np.int64), pooling))
        assert np.isfinite(rows).all()

    @pytest.mark.parametrize("dtype", [np.float16, np.float64])
    @pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
    def test_other_float_types_are_pooled_as_float32(self, pooling: Pooling, dtype: type) -> None:
        """The sum of 600 numbers near 100 exceeds a float16."""
        hidden: Array = np.random.default_rng(3).uniform(99, 101, (2, 600, 3)).astype(dtype)
        pooled = pool(hidden, np.ones((2, 600), np.int64), pooling)
        assert pooled.dtype == np.float32
        np.testing.assert_allclose(pooled, torch_pool(hidden, np.ones((2, 600)), pooling), rtol=1e-6)

    def test_cls_pooling_returns_copy(self) -> None:
        hidden = np.zeros((2, 3, 4), np.float32)
        pooled = pool(hidden, np.ones((2, 3), np.int64), "cls")
        hidden[:] = 1
        assert pooled.flags.c_contiguous
        assert not pooled.any()


class TestNormalize:
    @given(
        np_st.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.floats(-9, 9, width=32))
    )
    def test_normalized_rows_equal_torch(self, vectors: Array) -> None:
        rows = normalize_rows(vectors)
        assert rows.dtype == np.float32
        reference = torch.nn.functional.normalize(torch.from_numpy(vectors), dim=1).numpy()
        np.testing.assert_allclose(rows, reference, rtol=0, atol=1e-6)

    def test_rows_of_zeros_stay_zeros(self) -> None:
        assert normalize_rows(np.zeros((2, 3), np.float32)).tolist() == [[0.0] * 3] * 2


class TestScores:
    @pytest.mark.parametrize("multi_label", [False, True])
    @given(data=st.data())
    def test_scores_equal_torch(self, multi_label: bool, data: Any) -> None:
        shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 5)))
        logits = data.draw(np_st.arrays(np.float32, shape, elements=st.floats(-(2.0**100), 2.0**100, width=32)))
        given_logits = torch.from_numpy(logits).double()
        reference = given_logits.sigmoid() if multi_label else given_logits.softmax(dim=1)
        np.testing.assert_allclose(scores(logits, multi_label), reference.numpy(), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("multi_label", [False, True])
    def test_largest_logits_do_not_overflow(self, multi_label: bool) -> None:
        top = float(np.finfo(np.float32).max)
        probabilities = scores(np.array([[top, -top, 0.0]], np.float32), multi_label)
        assert probabilities.tolist() == [[1.0, 0.0, 0.5 if multi_label else 0.0]]

    def test_equal_logits_have_equal_scores(self) -> None:
        assert scores(np.full((1, 4), 80.0, np.float32), multi_label=False).tolist() == [[0.25] * 4]

    def test_float16_logits_give_float64_scores(self) -> None:
        logits = np.array([[1.0, 2.0]], np.float16)
        np.testing.assert_allclose(
            scores(logits, False), torch.tensor([[1.0, 2.0]]).double().softmax(dim=1).numpy(), atol=1e-6
        )
