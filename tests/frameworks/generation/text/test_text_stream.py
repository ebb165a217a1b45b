"""Delivery of a choice's text: however it is cut into tokens, the pieces add up to the text before its stop string."""

import codecs
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from frameworks.generation.sequences import GeneratedToken
from frameworks.generation.text.stop_strings import StopStrings
from frameworks.generation.text.text_stream import ChoiceText
from frameworks.generation.types import FinishReason, TextDelta

SEQUENCE_ID = 7
# Few letters, so that stop strings occur, overlap and restart within themselves; some of several bytes.
LETTERS = "abé你🚂"
texts = st.text(LETTERS, max_size=30)
stop_strings = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4)


class BytesOfTokens:
    """A TokenStream, and TokenTexts, whose token i has the i-th of some byte strings."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._decoder.decode(self._tokens[token_id])

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)

    def text_of(self, token_id: int) -> str:
        return self._tokens[token_id].decode("utf-8", "replace")

    def bytes_of(self, token_id: int) -> bytes:
        return self._tokens[token_id]


def cut_anywhere(text: str, borders: set[int]) -> list[bytes]:
    """Return the text as tokens, cut at these bytes."""
    encoded = text.encode()
    places = sorted({0, len(encoded), *(border for border in borders if border < len(encoded))})
    return [encoded[begin:end] for begin, end in pairwise(places)]


def pieces_of(
    tokens: Sequence[bytes],
    stops: Sequence[str] = (),
    *,
    finish_reason: FinishReason = "length",
    last_is_text: bool = True,
    with_tokens: bool = False,
    min_tokens: int = 0,
) -> list[TextDelta]:
    """Return the pieces of a text whose tokens are all pushed, even those after its end."""
    choice = ChoiceText(
        3,
        BytesOfTokens(tokens),
        StopStrings(stops),
        texts=BytesOfTokens(tokens) if with_tokens else None,
        min_tokens=min_tokens,
    )
    pieces = []
    for i in range(len(tokens)):
        is_last = i == len(tokens) - 1
        token = GeneratedToken(
            SEQUENCE_ID,
            i,
            finish_reason if is_last else None,
            is_text=last_is_text or not is_last,
            logprob=-float(i),
            top_logprobs=((i, -float(i)), (0, -9.0)),
        )
        was_over = choice.is_over
        pieces.append(choice.push(token))
        assert choice.is_over == (was_over or pieces[-1].finish_reason is not None)
    return pieces


@given(text=texts, borders=st.sets(st.integers(1, 60)))
def test_bytes_of_tokens_are_those_of_text(text: str, borders: set[int]) -> None:
    tokens = cut_anywhere(text, borders)
    shown = [token for piece in pieces_of(tokens, with_tokens=True) for token in piece.tokens]
    assert [token.bytes_of(token.token_id, token.text) for token in shown] == tokens
    assert [token.bytes_of(*token.top[1][:2]) for token in shown] == tokens[:1] * len(tokens)


def text_of(pieces: Sequence[TextDelta]) -> str:
    return "".join(piece.text for piece in pieces)


def cut_at_first_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The rule by its words: of the prefixes of a text the shortest that ends with a stop string, and the longest such
    string; what is left, and that string.
    """
    for end in range(len(text) + 1):
        ended_by = [stop for stop in stops if text[:end].endswith(stop)]
        if ended_by:
            stop = max(ended_by, key=len)
            return text[: end - len(stop)], stop
    return text, None


class TestStopStrings:
    @given(text=texts, stops=stop_strings, borders=st.sets(st.integers(0, 100)))
    @example("aab", ["ab"], {1, 2})
    @example("aaab", ["aab", "aac"], {1, 2, 3})
    @example("abab", ["b", "abab", "ab"], set())
    @example("你好🚂", ["好🚂"], {1, 2, 4, 7, 8})
    def test_text_ends_before_first_stop_string(self, text: str, stops: list[str], borders: set[int]) -> None:
        pieces = pieces_of(cut_anywhere(text, borders), stops)
        wanted, stop = cut_at_first_stop(text, stops)
        assert text_of(pieces) == wanted
        reasons = [piece.finish_reason for piece in pieces if piece.finish_reason]
        assert reasons == (["stop" if stop else "length"] if text else [])
        assert [piece.stop_string for piece in pieces if piece.stop_string] == ([stop] if stop else [])

    @given(text=texts, stops=stop_strings, borders=st.sets(st.integers(0, 100)))
    def test_only_possible_stop_string_held_back(self, text: str, stops: list[str], borders: set[int]) -> None:
        """After each token all whole characters are delivered, except the longest suffix that starts a stop string."""
        tokens = cut_anywhere(text, borders)
        pieces = pieces_of(tokens, stops)
        for i, piece in enumerate(pieces):
            if piece.finish_reason is not None:
                break
            so_far = b"".join(tokens[: i + 1]).decode("utf-8", "ignore")
            may_begin = [size for stop in stops for size in range(1, len(stop)) if so_far.endswith(stop[:size])]
            assert text_of(pieces[: i + 1]) == so_far[: len(so_far) - max(may_begin, default=0)]

    @pytest.mark.parametrize(
        ("stops", "wanted"),
        [
            (["ld", "world"], "hello "),
            (["orl", "world"], "hello w"),
            (["world", "orl"], "hello w"),
            (["", "x"], "hello world"),
            (["hello"], ""),
            (["worldly"], "hello world"),
        ],
    )
    def test_first_and_longest_stop_string_wins(self, stops: list[str], wanted: str) -> None:
        """The string that ends first wins, then the longest; their order does not matter."""
        assert text_of(pieces_of([b"hello wor", b"ld"], stops)) == wanted

    def test_held_text_delivered_when_no_stop_string(self) -> None:
        pieces = pieces_of([b"one \n", b"\n", b"User", b": x", b"?"], ["\n\nUser:\t"])
        assert [piece.text for piece in pieces] == ["one ", "", "", "\n\nUser: x", "?"]

    def test_stop_string_overrides_length(self) -> None:
        pieces = pieces_of([b"a", b"STOP", b"b", b"c"], ["STOP"])
        assert [(piece.text, piece.finish_reason) for piece in pieces] == [
            ("a", None),
            ("", "stop"),
            ("", None),
            ("", None),
        ]
        assert pieces_of([b"a", b"b STOP"], ["STOP"])[-1] == TextDelta(
            3, "b ", "stop", stop_string="STOP", num_generated=2
        )

    def test_held_text_delivered_at_end(self) -> None:
        pieces = pieces_of([b"a ST", b"</s>"], ["STOP"], finish_reason="stop", last_is_text=False)
        assert [(piece.text, piece.finish_reason) for piece in pieces] == [("a ", None), ("ST", "stop")]

    @given(text=texts, stops=stop_strings, borders=st.sets(st.integers(0, 100)), min_tokens=st.integers(0, 6))
    def test_stop_string_before_min_tokens_ignored(
        self, text: str, stops: list[str], borders: set[int], min_tokens: int
    ) -> None:
        tokens = cut_anywhere(text, borders)
        first = len(b"".join(tokens[:min_tokens]).decode("utf-8", "ignore"))
        ends = [end for end in range(first + 1, len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
        wanted = text
        if ends:
            wanted = text[: ends[0] - max(len(stop) for stop in stops if text[: ends[0]].endswith(stop))]
        # Delivered text stays: a stop string may begin within one that was ignored.
        sent = text_of(pieces_of(tokens, stops, min_tokens=min_tokens))
        assert sent == wanted

    def test_ignored_stop_string_delivered_at_once(self) -> None:
        pieces = pieces_of([b"a STOP", b"x STOP", b"y"], ["STOP"], min_tokens=1)
        assert [piece.text for piece in pieces] == ["a STOP", "x ", ""]

    def test_search_time_linear_in_text(self) -> None:
        """A search that restarted at each character would read 10^9 of them."""
        choice = ChoiceText(0, BytesOfTokens([b"a" * 50]), StopStrings(["a" * 20_000 + "b"]))
        assert {choice.push(GeneratedToken(1, 0)).text for _ in range(400)} == {""}
        assert len(choice.push(GeneratedToken(1, 0)).text) == 50


class TestCharacters:
    def test_incomplete_character_held_back(self) -> None:
        pieces = pieces_of([b"a\xf0\x9f", b"\x9a", b"\x82b"])
        assert [piece.text for piece in pieces] == ["a", "", "🚂b"]

    @pytest.mark.parametrize("last_is_text", [True, False])
    def test_unfinished_character_replaced_at_end(self, last_is_text: bool) -> None:
        tokens = [b"a", b"\xf0\x9f", *([] if last_is_text else [b"</s>"])]
        assert text_of(pieces_of(tokens, last_is_text=last_is_text)) == "a\ufffd"

    def test_stop_string_with_replacement_character(self) -> None:
        assert pieces_of([b"ab", b"\xf0\x9f"], ["b\ufffd"])[-1] == TextDelta(
            3, "", "stop", stop_string="b\ufffd", num_generated=2
        )

    def test_stop_token_has_no_text(self) -> None:
        for reason in ("stop", "length"):
            pieces = pieces_of([b"a", b"</s>"], finish_reason=_reason(reason), last_is_text=False, with_tokens=True)
            assert [(piece.text, len(piece.tokens)) for piece in pieces] == [("a", 1), ("", 0)]
            assert pieces[-1].finish_reason == reason


def test_pieces_count_generated_tokens() -> None:
    assert [piece.num_generated for piece in pieces_of([b"a", b"\xf0", b"\x9f"], last_is_text=False)] == [1, 2, 3]


def _reason(reason: str) -> Literal["stop", "length"]:
    return "stop" if reason == "stop" else "length"


class TestTokens:
    def ids_of(self, pieces: Sequence[TextDelta]) -> list[list[int]]:
        return [[token.token_id for token in piece.tokens] for piece in pieces]

    def test_tokens_absent_unless_requested(self) -> None:
        assert self.ids_of(pieces_of([b"a", b"b"])) == [[], []]

    def test_tokens_have_text_and_probabilities(self) -> None:
        [_, piece] = pieces_of([b"a", b" b"], with_tokens=True)
        [token] = piece.tokens
        assert (token.token_id, token.text, token.logprob) == (1, " b", -1.0)
        assert token.top == ((1, " b", -1.0), (0, "a", -9.0))

    def test_tokens_delivered_with_their_character(self) -> None:
        assert self.ids_of(pieces_of([b"a", b"\xf0", b"\x9f\x9a", b"\x82", b"b"], with_tokens=True)) == [
            [0], [], [], [1, 2, 3], [4],
        ]  # fmt: skip

    def test_tokens_held_back_with_their_text(self) -> None:
        assert self.ids_of(pieces_of([b"a S", b"T", b"x", b"y"], ["STOP"], with_tokens=True)) == [
            [],
            [],
            [0, 1, 2],
            [3],
        ]

    def test_tokens_after_stop_string_dropped(self) -> None:
        assert self.ids_of(pieces_of([b"a", b"b S", b"TO", b"P", b"c"], ["STOP"], with_tokens=True)) == [
            [0], [], [], [1], [],
        ]  # fmt: skip

    @given(text=texts, stops=stop_strings, borders=st.sets(st.integers(0, 100)), last_is_text=st.booleans())
    def test_tokens_delivered_once_in_order(
        self, text: str, stops: list[str], borders: set[int], last_is_text: bool
    ) -> None:
        tokens = cut_anywhere(text, borders)
        pieces = pieces_of(tokens, stops, last_is_text=last_is_text, with_tokens=True)
        shown = [token_id for ids in self.ids_of(pieces) for token_id in ids]
        assert shown == list(range(len(shown)))
        if not any(piece.finish_reason == "stop" for piece in pieces):
            assert len(shown) == len(tokens) - (not last_is_text and bool(tokens))
        sent = came = 0
        for piece in pieces:
            if piece.finish_reason is not None:
                break
            sent += len(piece.text.encode())
            came += len(piece.tokens)
            assert len(b"".join(tokens[:came])) <= sent + 3, "but for the beginning of a character"
