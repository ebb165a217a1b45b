"""Test tokenising against the library."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
from tokenizers import Tokenizer, normalizers

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.text.config import TextConfig
from frameworks.text.tokenizer import TextTokenizer
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

    def test_library_runs_no_threads_of_its_own(self) -> None:
        """They are shared by all callers: a short text on the event loop would wait for long ones."""
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"

    def test_positions_in_errors_count_texts_before(self, tokenizer: MakeTokenizer) -> None:
        for texts in (["the", LONG], ["the", "a\ud800"]):
            with pytest.raises(InvalidInput) as caught:
                tokenizer().tokenize(texts, truncate=False, first=10)
            assert caught.value.field == "text[11]"

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

    def test_own_ids_are_read_as_their_text(self, tokenizer: MakeTokenizer) -> None:
        for limit in (2, 3, 6, 9, 99):
            one = tokenizer(max_tokens=max(limit, 3))
            for add_special in (True, False):
                ids = [one.ids_of(text, add_special) for text in (LONG, "the cat", "the cat sat on")]
                read = one.read_ids(ids, truncate=True)
                if add_special:
                    assert read == one.tokenize([LONG, "the cat", "the cat sat on"], truncate=True)
                else:
                    assert read == [each[: max(limit, 3)] for each in ids]

    def test_own_ids_beyond_limit_are_refused(self, tokenizer: MakeTokenizer) -> None:
        one = tokenizer()
        with pytest.raises(InvalidInput, match=r"^text\[1\]: expected at most 6 tokens, got 9; .*truncate"):
            one.read_ids([one.ids_of("the", True), one.ids_of(LONG, True)], truncate=False)
        assert one.read_ids([[5] * 6], truncate=False) == [[5] * 6]

    @pytest.mark.parametrize("unknown", [-1, 10**6, 2**31 - 1])
    def test_own_id_outside_vocabulary_is_refused(self, tokenizer: MakeTokenizer, unknown: int) -> None:
        with pytest.raises(InvalidInput, match=rf"^text\[1\]\[2\]: expected a token id .*, got {unknown};"):
            tokenizer().read_ids([[2, 5], [2, 5, unknown]], truncate=True)

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


def test_other_tokenizer_files_are_ignored(tmp_path: Path) -> None:
    """vocab.txt and special_tokens_map.json are for other programs; only tokenizer.json is read."""
    write_tokenizer(tmp_path)
    write_json(tmp_path / "special_tokens_map.json", ["broken"])
    (tmp_path / "vocab.txt").write_bytes(b"\xff")
    assert TextTokenizer(tmp_path, CONFIG).tokenize(["the"], truncate=True) == [plain_ids(tmp_path, "the")]
