"""Tokenising, padding, pooling and the last arithmetic, against torch and against what the files say."""

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
    """Ours over the tests' own tokenizer.json; options are fields of TextConfig."""
    write_tokenizer(tmp_path, lower_case=False)
    return lambda **options: TextTokenizer(tmp_path, replace(CONFIG, **options))


def plain_ids(folder: Path, text: str) -> list[int]:
    """What the library itself makes of the text, nothing cut."""
    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return ids


class TestTokenizer:
    def test_ids_are_the_library_s_own(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        wanted = [plain_ids(tmp_path, text) for text in TEXTS]
        assert tokenizer(max_tokens=99).tokenize(list(TEXTS), truncate=False) == wanted

    @pytest.mark.parametrize("truncate", [True, False])
    def test_a_few_short_texts_are_tokenized_at_once(self, tokenizer: MakeTokenizer, truncate: bool) -> None:
        model = tokenizer(max_tokens=99)
        texts = [LONG, "", "the cat"]
        assert model.tokenize_at_once(texts, truncate) == model.tokenize(texts, truncate)
        assert model.tokenize_at_once(texts * 2, truncate) is None, "many texts"
        assert model.tokenize_at_once([LONG * 60], truncate) is None, "a long text"

    def test_nobody_is_waited_for_to_tokenize_at_once(self, tokenizer: MakeTokenizer) -> None:
        model = tokenizer(max_tokens=99)
        with model._lock:
            assert model.tokenize_at_once([LONG], True) is None
        assert model.tokenize_at_once([LONG], True) == model.tokenize([LONG], True)

    def test_what_is_refused_at_once_leaves_the_tokenizer_free(self, tokenizer: MakeTokenizer) -> None:
        model = tokenizer(max_tokens=4)
        with pytest.raises(InvalidInput, match=r"text\[0\]"):
            model.tokenize_at_once([LONG], False)
        assert model.tokenize_at_once(["cat"], True) is not None

    def test_no_text_gives_no_ids(self, tokenizer: MakeTokenizer) -> None:
        assert tokenizer().tokenize([], truncate=True) == []

    def test_an_empty_text_is_its_special_tokens(self, tokenizer: MakeTokenizer) -> None:
        assert tokenizer().tokenize(["", " \n"], truncate=False) == [[2, 3], [2, 3]]

    def test_a_text_is_cut_at_the_limit_and_keeps_its_last_special_token(
        self, tokenizer: MakeTokenizer, tmp_path: Path
    ) -> None:
        whole = plain_ids(tmp_path, LONG)
        assert tokenizer().tokenize([LONG], truncate=True) == [[*whole[:5], whole[-1]]]

    def test_what_is_as_long_as_the_limit_is_not_cut(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        exact = "the cat sat on"
        for truncate in (True, False):
            assert tokenizer().tokenize([exact], truncate) == [plain_ids(tmp_path, exact)]

    def test_an_over_long_text_is_refused_with_both_lengths_and_its_place(self, tokenizer: MakeTokenizer) -> None:
        with pytest.raises(InvalidInput, match=r"^text\[1\]: 9 tokens, .* at most 6; .*truncate") as caught:
            tokenizer().tokenize(["the", LONG, LONG], truncate=False)
        assert caught.value.field == "text[1]"

    def test_a_refusal_leaves_nothing_behind(self, tokenizer: MakeTokenizer) -> None:
        one = tokenizer()
        for _ in range(3):
            with pytest.raises(InvalidInput):
                one.tokenize([LONG], truncate=False)
            assert len(one.tokenize([LONG], truncate=True)[0]) == 6

    def test_two_threads_that_differ_about_truncation(self, tokenizer: MakeTokenizer) -> None:
        one, start = tokenizer(), Barrier(4)
        texts = [LONG] * 20

        def ask(truncate: bool) -> set[int | str]:
            start.wait()
            lengths: set[int | str] = set()
            for _ in range(150):
                try:
                    lengths |= {len(ids) for ids in one.tokenize(texts, truncate)}
                except InvalidInput as error:
                    lengths.add(error.message.split(",")[0])
            return lengths

        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(ask, [True, False, True, False]))
        assert answers == [{6}, {"text[0]: 9 tokens"}] * 2

    def test_a_prompt_is_put_before_every_text(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        one = tokenizer(prompt="query : ", max_tokens=99)
        wanted = [plain_ids(tmp_path, "query : the cat"), plain_ids(tmp_path, "query : ")]
        assert one.tokenize(["the cat", ""], truncate=True) == wanted

    def test_lower_case_is_for_the_text_and_its_prompt(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        one = tokenizer(prompt="QUERY : ", lower_case=True, max_tokens=99)
        assert one.tokenize(["The CAT"], truncate=True) == [plain_ids(tmp_path, "query : the cat")]
        as_it_is = tokenizer(max_tokens=99).tokenize(["The CAT"], truncate=True)
        assert as_it_is != [plain_ids(tmp_path, "the cat")]

    def test_lower_case_leaves_a_special_token_in_a_text_alone(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        one = tokenizer(lower_case=True, max_tokens=99)
        assert one.tokenize(["THE [MASK]"], truncate=True) == [plain_ids(tmp_path, "the [MASK]")]

    def test_lower_case_where_the_tokenizer_has_no_normaliser(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        file = tmp_path / "tokenizer.json"
        bare = Tokenizer.from_file(str(file))
        bare.normalizer = normalizers.Sequence([])
        bare.save(str(file))
        content = bare.to_str().replace('"normalizer":{"type":"Sequence","normalizers":[]}', '"normalizer":null')
        assert '"normalizer":null' in content
        file.write_text(content, encoding="utf-8")
        one = tokenizer(lower_case=True)
        assert one.tokenize(["The CAT"], truncate=True) == [plain_ids(tmp_path, "the cat")]

    def test_padding_and_truncation_of_the_training_are_dropped(self, tmp_path: Path) -> None:
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
    def test_an_absent_file_is_named_with_the_remedy(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidModel, match=r"tokenizer\.json: absent.*AutoTokenizer.*save_pretrained"):
            TextTokenizer(tmp_path, CONFIG)

    @pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model": {"type": "None"}}'])
    def test_a_broken_file_is_named(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
        with pytest.raises(InvalidModel, match=r"tokenizer\.json: not a tokenizer"):
            TextTokenizer(tmp_path, CONFIG)

    def test_a_file_that_is_not_text_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_bytes(b"\xff\x00\xfe")
        with pytest.raises(InvalidModel, match=r"tokenizer\.json: not a tokenizer"):
            TextTokenizer(tmp_path, CONFIG)

    def test_a_truncated_file_is_named(self, tmp_path: Path) -> None:
        write_tokenizer(tmp_path)
        file = tmp_path / "tokenizer.json"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(InvalidModel, match=r"tokenizer\.json: not a tokenizer"):
            TextTokenizer(tmp_path, CONFIG)

    @pytest.mark.parametrize(("limit", "fits"), [(1, False), (2, False), (3, True)])
    def test_a_limit_without_room_for_text_is_refused(self, tokenizer: MakeTokenizer, limit: int, fits: bool) -> None:
        if fits:
            assert tokenizer(max_tokens=limit).tokenize(["the cat"], truncate=True)[0][0] == 2
        else:
            with pytest.raises(InvalidModel, match=f"limit of {limit} tokens is used up by 2 special tokens"):
                tokenizer(max_tokens=limit)


class TestTokensAsked:
    """For callers who want tokens, and not what a model makes of them."""

    def test_ids_with_and_without_the_special_ones(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        one = tokenizer(prompt="query : ", max_tokens=4)
        assert one.ids_of(LONG, add_special_tokens=True) == plain_ids(tmp_path, LONG), "neither cut nor with the prompt"
        assert one.ids_of(LONG, add_special_tokens=False) == plain_ids(tmp_path, LONG)[1:-1]

    def test_they_are_not_cut_behind_a_text_that_is(self, tokenizer: MakeTokenizer, tmp_path: Path) -> None:
        one = tokenizer()
        assert len(one.tokenize([LONG], truncate=True)[0]) == 6
        assert one.ids_of(LONG, add_special_tokens=True) == plain_ids(tmp_path, LONG)
        assert len(one.tokenize([LONG], truncate=True)[0]) == 6

    def test_half_of_a_surrogate_pair(self, tokenizer: MakeTokenizer) -> None:
        with pytest.raises(InvalidInput, match=r"^text\[0\]: not valid Unicode"):
            tokenizer().ids_of("a\ud800", add_special_tokens=True)

    def test_their_names_and_their_text(self, tokenizer: MakeTokenizer) -> None:
        one = tokenizer()
        ids = one.ids_of("the cat zzz .", add_special_tokens=True)
        assert one.token_strings(ids) == ["[CLS]", "the", "cat", "z", "##z", "##z", ".", "[SEP]"]
        assert one.decode(ids) == "the cat zzz."
        assert (one.token_strings([]), one.decode([])) == ([], "")

    @pytest.mark.parametrize("wrong", [-1, 5_000, 2**32, 2**70])
    def test_an_id_that_is_none(self, tokenizer: MakeTokenizer, wrong: int) -> None:
        one = tokenizer()
        for ask in (one.token_strings, one.decode):
            with pytest.raises(InvalidInput, match=rf"^tokens: token {wrong} is not in the vocabulary"):
                ask([2, wrong])


class TestPairs:
    def test_the_longer_text_is_cut_first(self, tokenizer: MakeTokenizer) -> None:
        one = tokenizer(max_tokens=8)
        batch = one.tokenize_pairs([("the cat", LONG), (LONG, "the cat"), ("the", "cat")], truncate=True)
        names = [" ".join(one.token_strings(ids)) for ids in batch.token_ids]
        assert names == [
            "[CLS] the cat [SEP] the cat sat [SEP]",
            "[CLS] the cat sat [SEP] the cat [SEP]",
            "[CLS] the [SEP] cat [SEP]",
        ]
        assert batch.token_type_ids == [[0] * 4 + [1] * 4, [0] * 5 + [1] * 3, [0, 0, 0, 1, 1]]

    def test_types_only_where_the_model_reads_them(self, tokenizer: MakeTokenizer) -> None:
        one = tokenizer(max_tokens=8, reads_token_types=False)
        assert one.tokenize_pairs([("the", "cat")], truncate=True).token_type_ids is None

    def test_no_pairs(self, tokenizer: MakeTokenizer) -> None:
        assert tokenizer().tokenize_pairs([], truncate=True).rows == 0

    def test_a_prompt_is_the_first_text_s(self, tokenizer: MakeTokenizer) -> None:
        one = tokenizer(prompt="query : ", max_tokens=99)
        [ids] = one.tokenize_pairs([("the", "cat")], truncate=True).token_ids
        assert " ".join(one.token_strings(ids)) == "[CLS] query : the [SEP] cat [SEP]"

    def test_an_over_long_pair_is_refused_with_both_lengths_and_its_place(self, tokenizer: MakeTokenizer) -> None:
        with pytest.raises(InvalidInput, match=r"^text\[1\]: 10 tokens, .* at most 8; .*truncate"):
            tokenizer(max_tokens=8).tokenize_pairs([("the", "cat"), (LONG[:7], "the cat sat on ."[:14] + " .")], False)

    @pytest.mark.parametrize("pair", [("a\ud800", "a"), ("a", "a\udfff")])
    def test_half_of_a_surrogate_pair(self, tokenizer: MakeTokenizer, pair: tuple[str, str]) -> None:
        with pytest.raises(InvalidInput, match=r"^text\[1\]: not valid Unicode"):
            tokenizer().tokenize_pairs([("the", "cat"), pair], truncate=True)

    def test_a_limit_without_room_for_pairs(self, tokenizer: MakeTokenizer) -> None:
        with pytest.raises(InvalidInput, match=r"^text: the model reads 3 tokens, too few for pairs"):
            tokenizer(max_tokens=3).tokenize_pairs([("the", "cat")], truncate=True)
        assert len(tokenizer(max_tokens=4).tokenize_pairs([("the", "cat")], truncate=True).token_ids[0]) == 4


class TestPad:
    def test_right_padding_to_the_longest(self) -> None:
        padded = pad([[5, 6, 7], [], [8]], pad_token_id=1)
        assert padded.input_ids.tolist() == [[5, 6, 7], [1, 1, 1], [8, 1, 1]]
        assert padded.attention_mask.tolist() == [[1, 1, 1], [0, 0, 0], [1, 0, 0]]
        assert str(padded.input_ids.dtype) == str(padded.attention_mask.dtype) == "int64"

    def test_a_shortest_length(self) -> None:
        assert pad([[5]], 0, min_length=3).input_ids.tolist() == [[5, 0, 0]]
        assert pad([[5, 6]], 0, min_length=1).input_ids.tolist() == [[5, 6]]

    def test_texts_without_tokens_still_have_a_column(self) -> None:
        assert pad([[], []], 7).input_ids.tolist() == [[7], [7]]

    def test_no_texts(self) -> None:
        assert pad([], 0).input_ids.shape == (0, 1)

    def test_types_are_padded_with_the_first(self) -> None:
        types = pad([[5, 6], [7]], 9, min_length=3, token_type_ids=[[0, 1], [1]]).token_type_ids
        assert types is not None
        assert types.tolist() == [[0, 1, 0], [1, 0, 0]]
        assert pad([[5]], 9).token_type_ids is None


def torch_pool(hidden: Array, mask: Array, pooling: Pooling) -> Array:
    """The same in torch, text by text, without a mask: the reference."""
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
    def test_equals_torch_text_by_text(self, pooling: Pooling, data: Any) -> None:
        texts, longest, size = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5)))
        hidden = data.draw(np_st.arrays(np.float32, (texts, longest, size), elements=st.floats(-4, 4, width=32)))
        mask = data.draw(np_st.arrays(np.int64, (texts, longest), elements=st.integers(0, 1)))
        pooled = pool(hidden, mask, pooling)
        assert pooled.dtype == np.float32
        np.testing.assert_allclose(pooled, torch_pool(hidden, mask, pooling), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("pooling", ["mean", "max"])
    def test_what_is_padding_does_not_count(self, pooling: Pooling) -> None:
        hidden = np.array([[[1.0, -5.0], [3.0, -7.0], [9e9, 9e9]]], np.float32)
        mask = np.array([[1, 1, 0]])
        assert pool(hidden, mask, pooling).tolist() == ([[2.0, -6.0]] if pooling == "mean" else [[3.0, -5.0]])

    @pytest.mark.parametrize("pooling", ["mean", "max"])
    def test_a_text_without_tokens_can_be_normalised(self, pooling: Pooling) -> None:
        rows = normalize_rows(pool(np.ones((1, 2, 4), np.float32), np.zeros((1, 2), np.int64), pooling))
        assert np.isfinite(rows).all()

    @pytest.mark.parametrize("dtype", [np.float16, np.float64])
    @pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
    def test_other_floats_are_pooled_as_float32(self, pooling: Pooling, dtype: type) -> None:
        """600 numbers near 100 do not fit into the sum of a float16."""
        hidden: Array = np.random.default_rng(3).uniform(99, 101, (2, 600, 3)).astype(dtype)
        pooled = pool(hidden, np.ones((2, 600), np.int64), pooling)
        assert pooled.dtype == np.float32
        np.testing.assert_allclose(pooled, torch_pool(hidden, np.ones((2, 600)), pooling), rtol=1e-6)

    def test_the_first_state_is_a_copy(self) -> None:
        hidden = np.zeros((2, 3, 4), np.float32)
        pooled = pool(hidden, np.ones((2, 3), np.int64), "cls")
        hidden[:] = 1
        assert pooled.flags.c_contiguous
        assert not pooled.any()


class TestNormalize:
    @given(
        np_st.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.floats(-9, 9, width=32))
    )
    def test_equals_torch(self, vectors: Array) -> None:
        rows = normalize_rows(vectors)
        assert rows.dtype == np.float32
        reference = torch.nn.functional.normalize(torch.from_numpy(vectors), dim=1).numpy()
        np.testing.assert_allclose(rows, reference, rtol=0, atol=1e-6)

    def test_zeros_stay_zeros(self) -> None:
        assert normalize_rows(np.zeros((2, 3), np.float32)).tolist() == [[0.0] * 3] * 2


class TestScores:
    @pytest.mark.parametrize("multi_label", [False, True])
    @given(data=st.data())
    def test_equals_torch(self, multi_label: bool, data: Any) -> None:
        shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 5)))
        logits = data.draw(np_st.arrays(np.float32, shape, elements=st.floats(-(2.0**100), 2.0**100, width=32)))
        given_logits = torch.from_numpy(logits).double()
        reference = given_logits.sigmoid() if multi_label else given_logits.softmax(dim=1)
        np.testing.assert_allclose(scores(logits, multi_label), reference.numpy(), rtol=0, atol=1e-6)

    @pytest.mark.parametrize("multi_label", [False, True])
    def test_the_largest_logits_there_are(self, multi_label: bool) -> None:
        top = float(np.finfo(np.float32).max)
        probabilities = scores(np.array([[top, -top, 0.0]], np.float32), multi_label)
        assert probabilities.tolist() == [[1.0, 0.0, 0.5 if multi_label else 0.0]]

    def test_equal_logits_share(self) -> None:
        assert scores(np.full((1, 4), 80.0, np.float32), multi_label=False).tolist() == [[0.25] * 4]

    def test_float16_logits(self) -> None:
        logits = np.array([[1.0, 2.0]], np.float16)
        np.testing.assert_allclose(
            scores(logits, False), torch.tensor([[1.0, 2.0]]).double().softmax(dim=1).numpy(), atol=1e-6
        )


def test_a_tokenizer_s_folder_may_have_other_files(tmp_path: Path) -> None:
    """vocab.txt and special_tokens_map.json are for other programs; ours reads tokenizer.json alone."""
    write_tokenizer(tmp_path)
    write_json(tmp_path / "special_tokens_map.json", ["broken"])
    (tmp_path / "vocab.txt").write_bytes(b"\xff")
    assert TextTokenizer(tmp_path, CONFIG).tokenize(["the"], truncate=True) == [plain_ids(tmp_path, "the")]
