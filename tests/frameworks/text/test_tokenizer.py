"""Test tokenising, padding, pooling, normalisation and scores, against the library and torch."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st
from tokenizers import Tokenizer, normalizers

from frameworks.errors import InvalidInput, InvalidModel
from frameworks.text.config import Pooling, TextConfig
from frameworks.text.tokenizer import TextTokenizer, normalize_rows, pad, pool, scores
from frameworks.types import Array
from tests.support.models.text_files import TEXTS, write_json, write_tokenizer

CONFIG = TextConfig(
    max_tokens=6,
    pad_token_id=0,
    pooling=None,
    normalize=True,
    prompt="",
    lower_case=False,
    architecture="",
    model_type="bert",
    labels=(),
    multi_label=False,
    is_encoder_decoder=False,
)
LONG = "the cat sat on the mat ."

MakeTokenizer = Callable[..., TextTokenizer]


@pytest.fixture
def tokenizer(tmp_path: Path) -> MakeTokenizer:
    """Return a function that creates a tokenizer; its options are fields of TextConfig."""
    write_tokenizer(tmp_path, lower_case=False)
    return lambda **options: TextTokenizer(tmp_path, replace(CONFIG, **options))


def plain_ids(folder: Path, text: str) -> list[int]:
    """Return the ids of the library, without truncation."""
    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return ids


class TestTokenizer:
    def test_ids_equal_library(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        wanted = [plain_ids(tmp_path, text) for text in TEXTS]
        assert tokenizer(max_tokens=99).tokenize(list(TEXTS), truncate=False) == wanted

    @pytest.mark.parametrize("truncate", [True, False])
    def test_few_short_texts_are_tokenized_at_once(self, tokenizer: MakeTokenizer, truncate: bool) -> None:
        model = tokenizer(max_tokens=99)
        texts = [LONG, "", "the cat"]
        assert model.tokenize_at_once(texts, truncate) == model.tokenize(texts, truncate)
        assert model.tokenize_at_once(texts * 2, truncate) is None, "many texts"
        assert model.tokenize_at_once([LONG * 60], truncate) is None, "a long text"

    def test_tokenize_at_once_never_waits(self, tokenizer: MakeTokenizer) -> None:
        model = tokenizer(max_tokens=99)
        with model._lock:
            assert model.tokenize_at_once([LONG], True) is None
        assert model.tokenize_at_once([LONG], True) == model.tokenize([LONG], True)

    def test_refusal_at_once_releases_lock(self, tokenizer: MakeTokenizer) -> None:
        model = tokenizer(max_tokens=4)
        with pytest.raises(InvalidInput, match=r"text\[0\]"):
            model.tokenize_at_once([LONG], False)
        assert model.tokenize_at_once(["cat"], True) is not None

    def test_no_texts_give_no_ids(self, tokenizer: MakeTokenizer) -> None:
        assert tokenizer().tokenize([], truncate=True) == []

    def test_empty_text_has_special_tokens(self, tokenizer: MakeTokenizer) -> None:
        assert tokenizer().tokenize(["", " \n"], truncate=False) == [[2, 3], [2, 3]]

    def test_truncated_text_keeps_last_special_token(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        whole = plain_ids(tmp_path, LONG)
        assert tokenizer().tokenize([LONG], truncate=True) == [[*whole[:5], whole[-1]]]

    def test_text_at_limit_is_not_truncated(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        exact = "the cat sat on"
        for truncate in (True, False):
            assert tokenizer().tokenize([exact], truncate) == [plain_ids(tmp_path, exact)]

    def test_long_text_is_refused_with_lengths_and_position(self, tokenizer: MakeTokenizer) -> None:
        with pytest.raises(InvalidInput, match=r"^text\[1\]: expected at most 6 tokens, got 9; .*truncate") as caught:
            tokenizer().tokenize(["the", LONG, LONG], truncate=False)
        assert caught.value.field == "text[1]"

    def test_refusal_does_not_affect_later_calls(self, tokenizer: MakeTokenizer) -> None:
        one = tokenizer()
        for _ in range(3):
            with pytest.raises(InvalidInput):
                one.tokenize([LONG], truncate=False)
            assert len(one.tokenize([LONG], truncate=True)[0]) == 6

    def test_threads_use_different_truncation(self, tokenizer: MakeTokenizer) -> None:
        one, start = tokenizer(), Barrier(4)
        texts = [LONG] * 20

        def ask(truncate: bool) -> set[int | str]:
            start.wait()
            lengths: set[int | str] = set()
            for _ in range(150):
                try:
                    lengths |= {len(ids) for ids in one.tokenize(texts, truncate)}
                except InvalidInput as error:
                    lengths.add(error.reason.split(";")[0])
            return lengths

        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(ask, [True, False, True, False]))
        assert answers == [{6}, {"expected at most 6 tokens, got 9"}] * 2

    def test_prompt_precedes_every_text(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        one = tokenizer(prompt="query : ", max_tokens=99)
        wanted = [plain_ids(tmp_path, "query : the cat"), plain_ids(tmp_path, "query : ")]
        assert one.tokenize(["the cat", ""], truncate=True) == wanted

    def test_lower_case_applies_to_text_and_prompt(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        one = tokenizer(prompt="QUERY : ", lower_case=True, max_tokens=99)
        assert one.tokenize(["The CAT"], truncate=True) == [plain_ids(tmp_path, "query : the cat")]
        unchanged = tokenizer(max_tokens=99).tokenize(["The CAT"], truncate=True)
        assert unchanged != [plain_ids(tmp_path, "the cat")]

    def test_lower_case_keeps_special_token_in_text(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        one = tokenizer(lower_case=True, max_tokens=99)
        assert one.tokenize(["THE [MASK]"], truncate=True) == [plain_ids(tmp_path, "the [MASK]")]

    def test_lower_case_works_without_normaliser(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        file = tmp_path / "tokenizer.json"
        bare = Tokenizer.from_file(str(file))
        bare.normalizer = normalizers.Sequence([])
        bare.save(str(file))
        content = bare.to_str().replace('"normalizer":{"type":"Sequence","normalizers":[]}', '"normalizer":null')
        assert '"normalizer":null' in content
        file.write_text(content, encoding="utf-8")
        one = tokenizer(lower_case=True)
        assert one.tokenize(["The CAT"], truncate=True) == [plain_ids(tmp_path, "the cat")]

    def test_padding_and_truncation_of_file_are_ignored(self, tmp_path: Path) -> None:
        write_tokenizer(tmp_path)
        file = str(tmp_path / "tokenizer.json")
        trained = Tokenizer.from_file(file)
        trained.enable_padding(length=12)
        trained.enable_truncation(4)
        trained.save(file)
        one = TextTokenizer(tmp_path, CONFIG)
        assert [len(ids) for ids in one.tokenize(["the", "the cat sat on"], truncate=False)] == [3, 6]
        assert [len(ids) for ids in one.tokenize(["the", "the cat sat on"], truncate=True)] == [3, 6]


class TestTokenizerFiles:
    def test_absent_file_is_refused_with_remedy(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidModel, match=r"tokenizer\.json: absent.*AutoTokenizer.*save_pretrained"):
            TextTokenizer(tmp_path, CONFIG)

    @pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model": {"type": "None"}}'])
    def test_invalid_file_is_named(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
        with pytest.raises(InvalidModel, match=r"tokenizer\.json: not a tokenizer"):
            TextTokenizer(tmp_path, CONFIG)

    def test_binary_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_bytes(b"\xff\x00\xfe")
        with pytest.raises(InvalidModel, match=r"tokenizer\.json: not a tokenizer"):
            TextTokenizer(tmp_path, CONFIG)

    def test_truncated_file_is_named(self, tmp_path: Path) -> None:
        write_tokenizer(tmp_path)
        file = tmp_path / "tokenizer.json"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(InvalidModel, match=r"tokenizer\.json: not a tokenizer"):
            TextTokenizer(tmp_path, CONFIG)

    @pytest.mark.parametrize(("limit", "fits"), [(1, False), (2, False), (3, True)])
    def test_limit_below_special_tokens_is_refused(self, tokenizer: MakeTokenizer, limit: int, fits: bool) -> None:
        if fits:
            assert tokenizer(max_tokens=limit).tokenize(["the cat"], truncate=True)[0][0] == 2
        else:
            with pytest.raises(InvalidModel, match=f"limit of {limit} tokens is used up by 2 special tokens"):
                tokenizer(max_tokens=limit)


class TestTokenIds:
    """Token requests, without the model."""

    def test_ids_with_and_without_special_tokens(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        one = tokenizer(prompt="query : ", max_tokens=4)
        assert one.ids_of(LONG, add_special_tokens=True) == plain_ids(tmp_path, LONG), "without truncation and prompt"
        assert one.ids_of(LONG, add_special_tokens=False) == plain_ids(tmp_path, LONG)[1:-1]

    def test_ids_are_whole_after_truncated_text(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        one = tokenizer()
        assert len(one.tokenize([LONG], truncate=True)[0]) == 6
        assert one.ids_of(LONG, add_special_tokens=True) == plain_ids(tmp_path, LONG)
        assert len(one.tokenize([LONG], truncate=True)[0]) == 6

    def test_text_with_half_surrogate_is_refused(self, tokenizer: MakeTokenizer) -> None:
        with pytest.raises(InvalidInput, match=r"^text\[0\]: not valid Unicode"):
            tokenizer().ids_of("a\ud800", add_special_tokens=True)

    def test_ids_map_to_strings_and_text(self, tokenizer: MakeTokenizer) -> None:
        one = tokenizer()
        ids = one.ids_of("the cat zzz .", add_special_tokens=True)
        assert one.token_strings(ids) == ["[CLS]", "the", "cat", "z", "##z", "##z", ".", "[SEP]"]
        assert one.decode(ids) == "the cat zzz."
        assert (one.token_strings([]), one.decode([])) == ([], "")

    @pytest.mark.parametrize("wrong", [-1, 5_000, 2**32, 2**70])
    def test_unknown_id_is_refused(self, tokenizer: MakeTokenizer, wrong: int) -> None:
        one = tokenizer()
        for ask in (one.token_strings, one.decode):
            with pytest.raises(InvalidInput, match=rf"^tokens: token {wrong} is not in the vocabulary"):
                ask([2, wrong])


class TestPairs:
    def test_longer_text_of_pair_is_truncated_first(self, tokenizer: MakeTokenizer) -> None:
        one = tokenizer(max_tokens=8)
        batch = one.tokenize_pairs([("the cat", LONG), (LONG, "the cat"), ("the", "cat")], truncate=True)
        names = [" ".join(one.token_strings(ids)) for ids in batch.token_ids]
        assert names == [
            "[CLS] the cat [SEP] the cat sat [SEP]",
            "[CLS] the cat sat [SEP] the cat [SEP]",
            "[CLS] the [SEP] cat [SEP]",
        ]
        assert batch.token_type_ids == [[0] * 4 + [1] * 4, [0] * 5 + [1] * 3, [0, 0, 0, 1, 1]]

    def test_token_types_only_if_model_reads_them(self, tokenizer: MakeTokenizer) -> None:
        one = tokenizer(max_tokens=8, reads_token_types=False)
        assert one.tokenize_pairs([("the", "cat")], truncate=True).token_type_ids is None

    def test_no_pairs_give_no_rows(self, tokenizer: MakeTokenizer) -> None:
        assert tokenizer().tokenize_pairs([], truncate=True).rows == 0

    def test_prompt_precedes_first_text_of_pair(self, tokenizer: MakeTokenizer) -> None:
        one = tokenizer(prompt="query : ", max_tokens=99)
        [ids] = one.tokenize_pairs([("the", "cat")], truncate=True).token_ids
        assert " ".join(one.token_strings(ids)) == "[CLS] query : the [SEP] cat [SEP]"

    def test_long_pair_is_refused_with_lengths_and_position(self, tokenizer: MakeTokenizer) -> None:
        with pytest.raises(InvalidInput, match=r"^text\[1\]: expected at most 8 tokens, got 10; .*truncate"):
            tokenizer(max_tokens=8).tokenize_pairs([("the", "cat"), (LONG[:7], "the cat sat on ."[:14] + " .")], False)

    @pytest.mark.parametrize("pair", [("a\ud800", "a"), ("a", "a\udfff")])
    def test_pair_with_half_surrogate_is_refused(self, tokenizer: MakeTokenizer, pair: tuple[str, str]) -> None:
        with pytest.raises(InvalidInput, match=r"^text\[1\]: not valid Unicode"):
            tokenizer().tokenize_pairs([("the", "cat"), pair], truncate=True)

    def test_limit_too_small_for_pairs_is_refused(self, tokenizer: MakeTokenizer) -> None:
        with pytest.raises(InvalidInput, match=r"^text: expected no pairs, got one; the model reads 3 tokens"):
            tokenizer(max_tokens=3).tokenize_pairs([("the", "cat")], truncate=True)
        assert len(tokenizer(max_tokens=4).tokenize_pairs([("the", "cat")], truncate=True).token_ids[0]) == 4


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
                rows.append(states[0])
            case "mean":
                rows.append(tokens.mean(dim=0) if len(tokens) else torch.zeros(states.shape[1]))
            case "max":
                rows.append(tokens.amax(dim=0) if len(tokens) else torch.full(states.shape[1:], -1e9))
    result: Array = torch.stack(rows).float().numpy()
    return result


class TestPool:
    @pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
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

    @pytest.mark.parametrize("pooling", ["mean", "max"])
    def test_pooled_text_without_tokens_is_finite(self, pooling: Pooling) -> None:
        rows = normalize_rows(pool(np.ones((1, 2, 4), np.float32), np.zeros((1, 2), np.int64), pooling))
        assert np.isfinite(rows).all()

    @pytest.mark.parametrize("dtype", [np.float16, np.float64])
    @pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
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


def test_other_tokenizer_files_are_ignored(tmp_path: Path) -> None:
    """vocab.txt and special_tokens_map.json are for other programs; only tokenizer.json is read."""
    write_tokenizer(tmp_path)
    write_json(tmp_path / "special_tokens_map.json", ["broken"])
    (tmp_path / "vocab.txt").write_bytes(b"\xff")
    assert TextTokenizer(tmp_path, CONFIG).tokenize(["the"], truncate=True) == [plain_ids(tmp_path, "the")]
