"""Text is the same token by token and at once, and as the tokenizers library makes it."""

from functools import cache
from itertools import accumulate
from typing import get_args

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from frameworks.generation.text.detokenizing import ByteDetokenizer, Detokenizer, JoinedDetokenizer, detokenizer_of
from tests.support.models.generation_tokenizers import Kind, make_tokenizer

KINDS: tuple[Kind, ...] = get_args(Kind)
OF_BYTES: tuple[Kind, ...] = ("gpt2", "llama2", "gemma")
TEXTS = (
    "the cat sat on the mat",
    "  two   spaces and a space behind ",
    "naïve cafés — “déjà vu”",
    "你好世界。 日本語",
    "👩‍👩‍👧‍👦 🚂🏳️‍🌈 a👍🏽b",
    "e\u0301 n\u0303 \u0915\u094d\u0937 \u200b\ufeff",
    "line\nbreak\ttab\r\n \x00\x7f",
    "\ufffd is a character too",
    "<tool>in</s>the midst<s>",
    "",
)
BYTE_OF_LLAMA = 3
"""Id of its token for byte 0."""
# Beginnings, middles and ends of characters, and bytes that are never one.
BYTES = b"a \xc3\xa9\xe4\xbd\xa0\xf0\x9f\x9a\x82\xed\xa0\x80\xff\xef\xbf\xbd"


@cache
def tokenizer_of(kind: Kind) -> Tokenizer:
    return make_tokenizer(kind)


@cache
def ours(kind: Kind) -> Detokenizer:
    return detokenizer_of(tokenizer_of(kind))


def token(kind: Kind, name: str) -> int:
    token_id = tokenizer_of(kind).token_to_id(name)
    assert token_id is not None
    return token_id


def library_s(kind: Kind, ids: list[int]) -> str:
    return tokenizer_of(kind).decode(ids, skip_special_tokens=True)


def streamed(kind: Kind, ids: list[int], prompt: list[int] | None = None) -> list[str]:
    """Return the text of each token, and that of the end."""
    stream = ours(kind).stream(tuple(prompt or ()))
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


@cache
def ids_of(kind: Kind) -> st.SearchStrategy[list[int]]:
    """Of the kind's tokens, special ones and such as do not exist; of single bytes more than their share."""
    tokenizer = tokenizer_of(kind)
    size = tokenizer.get_vocab_size()
    anything = st.integers(0, size + 1)
    if kind in OF_BYTES:
        names = [tokenizer.encode(bytes([byte]).decode("latin-1"), add_special_tokens=False).ids for byte in BYTES]
        singles = [BYTE_OF_LLAMA + byte for byte in BYTES] if kind != "gpt2" else [i for ids in names for i in ids]
        return st.lists(st.one_of(anything, st.sampled_from(singles)), max_size=12)
    return st.lists(anything, max_size=12)


@cache
def words_and_characters(kind: Kind) -> st.SearchStrategy[list[list[int]]]:
    """Tokens that are not bytes, and the bytes of whole characters."""
    size = tokenizer_of(kind).get_vocab_size()
    bytes_end = BYTE_OF_LLAMA + 256
    words = (st.integers(0, BYTE_OF_LLAMA - 1) | st.integers(bytes_end, size - 1)).map(lambda i: [i])
    characters = st.characters(codec="utf-8").map(lambda c: [BYTE_OF_LLAMA + byte for byte in c.encode()])
    return st.lists(st.one_of(words, characters), max_size=12)


def as_sentencepiece(run: bytes) -> str:
    """Each character that is whole, and U+FFFD for each byte that is in none."""
    text, at = "", 0
    while at < len(run):
        for size in (1, 2, 3, 4):
            try:
                text += run[at : at + size].decode()
            except UnicodeDecodeError:
                continue
            at += min(size, len(run) - at)
            break
        else:
            text, at = text + "\ufffd", at + 1
    return text


class TestAgainstLibrary:
    @pytest.mark.parametrize("text", TEXTS)
    @pytest.mark.parametrize("kind", KINDS)
    def test_decode_text_matches_library(self, kind: Kind, text: str) -> None:
        ids = tokenizer_of(kind).encode(text).ids
        wanted = library_s(kind, ids)
        assert ours(kind).decode(ids) == wanted
        assert "".join(streamed(kind, ids)) == wanted

    @pytest.mark.parametrize("text", TEXTS[:-3])
    @pytest.mark.parametrize("kind", OF_BYTES)
    def test_decode_restores_encoded_text(self, kind: Kind, text: str) -> None:
        assert "".join(streamed(kind, tokenizer_of(kind).encode(text).ids)) == text

    @pytest.mark.parametrize("kind", ["gpt2", "words", "suffixes", "metaspace", "plain"])
    @given(data=st.data())
    def test_decode_any_tokens_matches_library(self, kind: Kind, data: st.DataObject) -> None:
        ids = data.draw(ids_of(kind))
        wanted = library_s(kind, ids)
        assert ours(kind).decode(ids) == wanted
        assert "".join(streamed(kind, ids)) == wanted

    @pytest.mark.parametrize("kind", ["words", "suffixes", "metaspace", "plain"])
    @given(data=st.data())
    def test_stream_any_tokens_after_any_prompt(self, kind: Kind, data: st.DataObject) -> None:
        prompt, ids = data.draw(ids_of(kind)), data.draw(ids_of(kind))
        assert library_s(kind, prompt) + "".join(streamed(kind, ids, prompt)) == library_s(kind, prompt + ids)

    @pytest.mark.parametrize("kind", ["llama2", "gemma"])
    @given(data=st.data())
    def test_decode_characters_of_byte_tokens(self, kind: Kind, data: st.DataObject) -> None:
        """Where the bytes between other tokens are whole characters."""
        ids = [i for part in data.draw(words_and_characters(kind)) for i in part]
        wanted = library_s(kind, ids)
        assert ours(kind).decode(ids) == wanted
        assert "".join(streamed(kind, ids)) == wanted


class TestBytes:
    @pytest.mark.parametrize("kind", OF_BYTES)
    @given(data=st.data())
    def test_stream_equals_decode_after_any_prompt(self, kind: Kind, data: st.DataObject) -> None:
        prompt, ids = data.draw(ids_of(kind)), data.draw(ids_of(kind))
        tokens = ours(kind)
        assert isinstance(tokens, ByteDetokenizer)
        # The beginning of U+FFFD itself: what then stands for it and what it is cannot be told apart below.
        assume(not b"".join(map(tokens.bytes_of, prompt)).endswith((b"\xef", b"\xef\xbf")))
        before, text = ours(kind).decode(prompt), "".join(streamed(kind, ids, prompt))
        whole = ours(kind).decode(prompt + ids)
        if whole.startswith(before):
            assert before + text == whole
        else:
            # The tokens end a character that the prompt began.
            assert before.endswith("\ufffd")
            assert before.rstrip("\ufffd") == whole[: len(whole) - len(text)].rstrip("\ufffd")
            assert whole.endswith(text)
            assert not text.startswith("\ufffd")

    @pytest.mark.parametrize("kind", ["llama2", "gemma"])
    @given(run=st.lists(st.sampled_from(BYTES), max_size=10).map(bytes))
    @example(b"\xe4\xbd\xa0\xff")
    @example(b"\xe4\xbd")
    @example(b"\xf0\x9f\x9aa")
    def test_invalid_bytes_leave_neighbours_alone(self, kind: Kind, run: bytes) -> None:
        ids = [BYTE_OF_LLAMA + byte for byte in run]
        wanted = as_sentencepiece(run)
        if kind == "llama2":
            wanted = wanted.removeprefix(" ")
        assert ours(kind).decode(ids) == wanted
        assert "".join(streamed(kind, ids)) == wanted

    @pytest.mark.parametrize("kind", OF_BYTES)
    @given(data=st.data())
    def test_character_delivered_with_its_last_token(self, kind: Kind, data: st.DataObject) -> None:
        text = data.draw(st.text(max_size=6))
        ids = tokenizer_of(kind).encode(text, add_special_tokens=False).ids
        tokens = ours(kind)
        assert isinstance(tokens, ByteDetokenizer)
        so_far = accumulate(map(tokens.bytes_of, ids), initial=b"")
        whole = [part.decode("utf-8", "ignore").removeprefix(tokens.stripped) for part in so_far]
        assert list(accumulate(streamed(kind, ids)[:-1], initial="")) == whole

    @pytest.mark.parametrize("kind", OF_BYTES)
    def test_added_token_is_text_special_is_not(self, kind: Kind) -> None:
        tool = token(kind, "<tool>")
        assert streamed(kind, [1, tool, 2, tool, 99_999]) == ["", "<tool>", "", "<tool>", "", ""]

    def test_leading_space_stripped_only_at_start(self) -> None:
        the = token("llama2", "▁the")
        assert streamed("llama2", [1, the, the]) == ["", "the", " the", ""]
        assert streamed("llama2", [the], prompt=[1, 2]) == ["the", ""]
        assert streamed("llama2", [the], prompt=[1, the]) == [" the", ""]
        assert streamed("gemma", [the]) == [" the", ""]

    @pytest.mark.parametrize("kind", OF_BYTES)
    def test_character_begun_by_prompt(self, kind: Kind) -> None:
        one, two, three = (self.id_of(kind, byte) for byte in "你".encode())
        letter = token(kind, "a")
        assert streamed(kind, [three, letter], prompt=[letter, one, two]) == ["你", "a", ""]
        assert streamed(kind, [letter], prompt=[letter, one, two]) == ["a", ""]
        assert streamed(kind, [], prompt=[letter, one, two]) == [""]
        assert streamed(kind, [one], prompt=[letter]) == ["", "\ufffd"]

    @staticmethod
    def id_of(kind: Kind, byte: int) -> int:
        if kind != "gpt2":
            return BYTE_OF_LLAMA + byte
        tokens = ours(kind)
        assert isinstance(tokens, ByteDetokenizer)
        return next(i for i in range(300) if tokens.bytes_of(i) == bytes([byte]))


class TestTokens:
    @pytest.mark.parametrize(
        ("kind", "name", "text"),
        [
            ("gpt2", "Ġthe", " the"), ("gpt2", "</s>", "</s>"), ("gpt2", "<tool>", "<tool>"), ("gpt2", "Ã", "\ufffd"),
            ("llama2", "▁the", " the"), ("llama2", "<0x41>", "A"), ("llama2", "<0xE4>", "\ufffd"),
            ("llama2", "<s>", "<s>"), ("gemma", "▁", " "), ("words", "the", " the"), ("words", "##e", "e"),
            ("words", "</s>", "</s>"), ("metaspace", "▁the", " the"), ("plain", "the", " the"),
            ("suffixes", "the</w>", " the"),
        ],
    )  # fmt: skip
    def test_text_of_token(self, kind: Kind, name: str, text: str) -> None:
        assert ours(kind).text_of(token(kind, name)) == text

    @pytest.mark.parametrize(
        ("kind", "name", "expected"),
        [
            ("gpt2", "Ã", b"\xc3"), ("gpt2", "Ġthe", b" the"), ("gpt2", "</s>", b""), ("llama2", "<0xE4>", b"\xe4"),
            ("words", "the", b" the"), ("words", "</s>", b""),
        ],
    )  # fmt: skip
    def test_bytes_of_token(self, kind: Kind, name: str, expected: bytes) -> None:
        assert ours(kind).bytes_of(token(kind, name)) == expected

    @pytest.mark.parametrize("kind", KINDS)
    def test_text_of_unknown_id(self, kind: Kind) -> None:
        assert ours(kind).text_of(99_999) == ""
        assert streamed(kind, [99_999]) == ["", ""]


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.Sequence([decoders.ByteFallback(), decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 1)]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
        decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Sequence([decoders.Fuse(), decoders.ByteLevel()]),
    ],
)
def test_other_decoders_stream_equals_decode(decoder: decoders.Decoder | None) -> None:
    tokenizer = make_tokenizer("llama2")
    if decoder is not None:
        tokenizer.decoder = decoder
        assert isinstance(detokenizer_of(tokenizer), JoinedDetokenizer)
    tokenizer.decoder = decoders.Sequence([decoders.Sequence([tokenizer_of("llama2").decoder])])
    assert isinstance(detokenizer_of(tokenizer), ByteDetokenizer)
