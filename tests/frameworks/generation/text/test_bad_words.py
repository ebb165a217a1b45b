"""Tokens of words that a text must not have."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from frameworks.core.errors import InvalidInput
from frameworks.generation.text.bad_words import BadWords, bad_sequences


class SplitTokenizer:
    """The one method that the words need, on a tokenizer with a token for each byte and for " is"."""

    def __init__(self) -> None:
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {letter: number for number, letter in enumerate([*letters, "is", "Ġis"])}
        self.tokenizer = Tokenizer(models.BPE(vocabulary, [("i", "s"), ("Ġ", "is")]))
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.decoder = decoders.ByteLevel()

    def ids_of(self, text: str, add_special_tokens: bool) -> list[int]:
        if text.strip() == "\ud800":
            raise InvalidInput("prompt", "expected valid Unicode, got a surrogate")
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids


def test_words_are_split_with_and_without_space() -> None:
    own = SplitTokenizer()
    name = own.tokenizer.token_to_id
    x, space = name("x"), name("Ġ")
    assert bad_sequences(["is", " x"], own) == ((name("is"),), (name("Ġis"),), (space, x))  # type: ignore[arg-type]
    assert bad_sequences([], own) == ()  # type: ignore[arg-type]


def test_word_of_invalid_unicode_is_refused() -> None:
    with pytest.raises(InvalidInput, match="expected valid Unicode") as refused:
        bad_sequences(["\ud800"], SplitTokenizer())  # type: ignore[arg-type]
    assert refused.value.field == "bad_words"


def test_last_token_is_banned_after_others() -> None:
    words = BadWords([(1, 2, 3), (2, 4), (5,)])
    assert sorted(words.last_ids) == [3, 4, 5]
    assert sorted(words.banned) == [5]
    steps = [(1, []), (2, [3, 4]), (2, [3]), (4, [4]), (1, []), (2, [3, 4])]
    assert [(each, sorted(words.accept(each))) for each, _ in steps] == steps
    assert sorted(words.banned) == [3, 4, 5]
