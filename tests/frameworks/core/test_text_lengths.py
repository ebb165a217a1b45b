"""Test that parts of long texts give the tokens of whole texts, and that no text that fits is refused."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from frameworks.core.errors import InvalidInput
from frameworks.core.text_lengths import MOST_CHARACTERS, TextLengths
from frameworks.text.config import TextConfig
from frameworks.text.tokenizer import TextTokenizer
from tests.support.models.generation_tokenizers import Kind, make_tokenizer

ROOT = Path(__file__).parents[3]


def _byte_letters(normalizer: Any = None, pattern: str | None = None) -> Tokenizer:
    tokenizer = make_tokenizer("gpt2")
    tokenizer.normalizer = normalizer
    if pattern is not None:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    return tokenizer


def _stripping() -> Tokenizer:
    tokenizer = make_tokenizer("gpt2")
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<end>", rstrip=True, normalized=False)])
    return tokenizer


def _unigram() -> Tokenizer:
    """As XLM-RoBERTa's: words begin with ▁, unknown letters are fused."""
    pieces = ["<unk>", "▁", "▁the", "▁cat", "the", "cat", "a", "b", "e", "t", "s", "ab", "ba", "▁a", "▁ab", "."]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(i % 7) - 1) for i, piece in enumerate(pieces)], 0))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    **{kind: partial(make_tokenizer, kind) for kind in get_args(Kind)},
    "nfc": lambda: _byte_letters(normalizers.NFC()),
    "nfkd": lambda: _byte_letters(normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])),
    "digits": lambda: _byte_letters(None, r"\d{1,3}(?=(?:\d{3})*(?!\d))|\s+(?!\S)|\s+|[^\s\d]+"),
    "strips": _stripping,
    "unigram": _unigram,
    "minilm": lambda: Tokenizer.from_file(str(ROOT / "models/minilm/tokenizer.json")),
    "tiny-llama": lambda: Tokenizer.from_file(str(ROOT / "models/tiny-llama/tokenizer.json")),
}
# The tokens of these stand for at most so many characters as the longest one has.
BOUNDED = ("gpt2", "llama2", "gemma", "nfc", "nfkd", "digits", "strips", "tiny-llama", "metaspace")

FRAGMENTS = (
    *(
        "the cat sat on",
        " ",
        "  ",
        "\n",
        " \n",
        "\t",
        "a",
        "ab",
        "ba",
        "zebra",
        ".",
        "…",
        ",",
        "12",
        "123",
        "é",
        "e\u0301",
    ),
    *(
        "\u0301",
        "\x00",
        "\u200b",
        "你好",
        "。",
        "🧿",
        "<mask>",
        "<mas",
        "k>",
        "<tool>",
        "<end>",
        "[MASK]",
        "</s>",
        "İ",
        "ﬁ",
    ),
    *("¨", "\u00a0", "\u3000", "déjà vu", "ΑΣ", "'s", "don't", "turntable engine"),
)
# Parts are tried from about 1,200 characters on, for the limits of these tests.
MOST_DRAWN = 6000
# Long runs of the same, short runs of others.
TEXTS = st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.sampled_from([1, 1, 1, 2, 3, 40, 700])), max_size=40).flatmap(
    lambda runs: st.integers(1, 30).map(
        lambda times: ("".join(text * count for text, count in runs) * times)[:MOST_DRAWN]
    )
)


@cache
def library_of(name: str) -> Tokenizer:
    """Return the library's tokenizer, without special tokens around the text for those that are trained here."""
    tokenizer = TOKENIZERS[name]()
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@cache
def ours_of(name: str, max_tokens: int) -> TextTokenizer:
    """Return our tokenizer over the same file; it has <s> and </s> around texts and pairs where it had nothing."""
    with TemporaryDirectory() as folder:
        library_of(name).save(f"{folder}/tokenizer.json")
        config = TextConfig(max_tokens, 0, None, True, "", False, "", "", (), False, False)
        return TextTokenizer(Path(folder), config)


def num_tokens_of(name: str, text: str) -> int:
    return len(library_of(name).encode(text, add_special_tokens=False))


def truncated_by_library(name: str, text: Any, max_tokens: int) -> list[int]:
    """Return the ids that the library truncates itself."""
    tokenizer = library_of(name)
    tokenizer.enable_truncation(max_tokens)
    try:
        ids: list[int] = tokenizer.encode(*text).ids if isinstance(text, tuple) else tokenizer.encode(text).ids
    finally:
        tokenizer.no_truncation()
    return ids


FEW_EXAMPLES = settings(max_examples=20)
"""For properties of each of the tokenizers: hundreds of examples in all."""


@pytest.mark.parametrize("name", TOKENIZERS)
class TestBeginning:
    @FEW_EXAMPLES
    @given(text=TEXTS, max_tokens=st.sampled_from([3, 4, 9, 30]))
    @example("the cat " * 2_000, 9)
    @example("a" * 9_000, 4)
    @example("1" * 5_000 + " 12", 30)
    @example(" " * 5_000 + "<mask> the cat", 4)
    def test_truncated_part_equals_truncated_whole(self, name: str, text: str, max_tokens: int) -> None:
        [ids] = ours_of(name, max_tokens).tokenize([text], truncate=True)
        assert ids == truncated_by_library(name, text, max_tokens)

    @FEW_EXAMPLES
    @given(text=TEXTS, max_tokens=st.sampled_from([3, 30]))
    def test_text_that_fits_is_never_refused(self, name: str, text: str, max_tokens: int) -> None:
        whole = library_of(name).encode(text).ids
        if len(whole) <= max_tokens:
            assert ours_of(name, max_tokens).tokenize([text], truncate=False) == [whole]
        else:
            with pytest.raises(InvalidInput, match=f"expected at most {max_tokens} tokens, got "):
                ours_of(name, max_tokens).tokenize([text], truncate=False)

    @FEW_EXAMPLES
    @given(text=TEXTS)
    def test_limit_admits_texts_with_so_many_tokens(self, name: str, text: str) -> None:
        assert not TextLengths(library_of(name)).limit(num_tokens_of(name, text)).exceeds(text)

    def test_only_part_of_long_text_is_tokenized(self, name: str) -> None:
        text = "the cat sat on the mat . " * 4_000
        recorded = RecordingTokenizer(library_of(name))
        part = TextLengths(recorded).beginning(text, 16)  # type: ignore[arg-type]
        splits = name not in ("llama2", "gemma")
        assert (len(part) < 5_000) is splits, "a text of one word is read as a whole"
        assert (sum(recorded.characters) < 5_000) is splits


@pytest.mark.parametrize("name", ["minilm", "tiny-llama", "unigram"])
class TestPairs:
    """The library makes all pairs of the parts that it cuts off, so texts of few words go with small limits."""

    @given(
        first=st.sampled_from(["", "the cat", "the cat sat on the mat"]),
        second=st.sampled_from(["", "the", "the mat", "sat on a mat of the turntable engine"]),
        max_tokens=st.sampled_from([5, 6, 8, 9]),
    )
    def test_short_pair_equals_library(self, name: str, first: str, second: str, max_tokens: int) -> None:
        self.check(name, first, second, max_tokens)

    @given(
        first=st.sampled_from(["", "the cat", "the cat " * 30, "the cat " * 300, "a b " * 600]),
        second=st.sampled_from(["", "the cat", "sat on a mat " * 20, "the cat sat " * 190, "a b c " * 380]),
        max_tokens=st.sampled_from([40, 41]),
    )
    def test_long_pair_equals_library(self, name: str, first: str, second: str, max_tokens: int) -> None:
        self.check(name, first, second, max_tokens)

    def check(self, name: str, first: str, second: str, max_tokens: int) -> None:
        wanted = truncated_by_library(name, (first, second), max_tokens)
        assert ours_of(name, max_tokens).tokenize_pairs([(first, second)], truncate=True).token_ids == [wanted]


class RecordingTokenizer:
    """A tokenizer that records the characters of the texts that it tokenizes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.characters: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> Any:
        self.characters += map(len, texts)
        return self._tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)


class TestLimits:
    @pytest.mark.parametrize("name", TOKENIZERS)
    def test_limit_follows_longest_token(self, name: str) -> None:
        tokenizer = library_of(name)
        limit = TextLengths(tokenizer).limit(100)
        longest = max(map(len, tokenizer.get_vocab()))
        bounded = {"nfc": 4 * longest * 100}.get(name, longest * 100)
        assert limit.num_characters == (bounded if name in BOUNDED else MOST_CHARACTERS)
        assert TextLengths(tokenizer).limit(10_000).num_characters >= 64 * 10_000 or name in BOUNDED

    def test_dropped_white_space_does_not_count(self) -> None:
        limit = TextLengths(library_of("strips")).limit(1)
        assert not limit.exceeds(" \n\u3000" * 1000)
        assert limit.exceeds("a" * (limit.num_characters + 1))

    @pytest.mark.parametrize(
        "change",
        [
            lambda t: setattr(t, "normalizer", normalizers.Strip()),
            lambda t: setattr(t, "normalizer", normalizers.Replace("a", "")),
            lambda t: setattr(t, "normalizer", normalizers.Sequence([normalizers.NFC(), normalizers.StripAccents()])),
            lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Whitespace()),
            lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Split(" ", "removed")),
            lambda t: setattr(t, "pre_tokenizer", None),
        ],
    )
    def test_steps_that_drop_text_have_no_longest_token(self, change: Callable[[Tokenizer], None]) -> None:
        tokenizer = make_tokenizer("gpt2")
        change(tokenizer)
        assert TextLengths(tokenizer).limit(10).num_characters == MOST_CHARACTERS

    def test_longer_replacement_keeps_bound(self) -> None:
        tokenizer = make_tokenizer("gpt2")
        tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("abc", "x"), normalizers.Prepend("x")])
        longest = max(map(len, tokenizer.get_vocab()))
        assert TextLengths(tokenizer).limit(10).num_characters == 3 * longest * 10

    def test_refusal_has_both_lengths(self) -> None:
        limit = TextLengths(library_of("gpt2")).limit(10)
        text = "a" * (limit.num_characters + 1)
        message = f"^prompt: expected at most 12 tokens, got {len(text)} characters, which are more; shorten it$"
        with pytest.raises(InvalidInput, match=message):
            raise limit.refusal("prompt", text, "at most 12 tokens")
        with pytest.raises(InvalidInput, match=r"fewer than 11 tokens, .*, got more, in 3 characters; shorten it$"):
            raise limit.refusal("prompt", "abc")

    def test_listed_texts_have_a_bound_of_characters(self) -> None:
        lengths = TextLengths(library_of("gpt2"))
        limit = lengths.limit(10).to_list()
        assert not lengths.has_more("the cat " * (MOST_CHARACTERS // 8), limit)
        long = "a" * (MOST_CHARACTERS + 1)
        assert lengths.has_more(long, limit)
        with pytest.raises(InvalidInput, match=rf"^prompt: expected at most {MOST_CHARACTERS} characters, got "):
            raise limit.refusal("prompt", long)
        assert lengths.limit(10**6).to_list().num_characters == lengths.limit(10**6).num_characters

    def test_half_of_surrogate_pair_is_named(self) -> None:
        with pytest.raises(InvalidInput, match=r"^text\[0\]: not valid Unicode"):
            ours_of("minilm", 9).tokenize(["\ud800 the cat" * 9999], truncate=True)


def test_post_processors_of_pairs_are_followed(tmp_path: Path) -> None:
    tokenizer = make_tokenizer("gpt2")
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = TextConfig(9, 0, None, True, "", False, "", "", (), False, False)
    ours = TextTokenizer(tmp_path, config)
    pair = ("the cat sat on", "on the mat " * 9)
    tokenizer.enable_truncation(9)
    assert ours.tokenize_pairs([pair], truncate=True).token_ids == [tokenizer.encode(*pair).ids]
    assert ours.tokenize([pair[1]], truncate=True) == [tokenizer.encode(pair[1]).ids]
