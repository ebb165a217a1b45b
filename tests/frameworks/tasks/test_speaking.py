"""The parts of a text that are spoken one after the other."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.tasks.speaking import MAX_CHARACTERS, MAX_TEXTS, TEXT_TO_AUDIO, describe_speakers, parts_of

SENTENCE = "The sun is warm today and the road to the sea is long. "


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (" \n ", []),
        ("One.", ["One."]),
        ("It costs 1.50, or 3.14? No.", ["It costs 1.50, or 3.14? No."]),
        (SENTENCE * 3, [(SENTENCE * 2).strip(), SENTENCE.strip()]),
        (SENTENCE * 2 + "\n\n1984 \U0001f389!", [SENTENCE * 2 + "1984 \U0001f389!"]),
        ("1984: " * 40 + SENTENCE, ["1984: " * 40 + SENTENCE.strip()]),
        ("\u4eca\u65e5\u306f\u3002" * 60, None),
    ],
)
def test_parts_are_sentences_of_a_length(text: str, parts: list[str] | None) -> None:
    found = parts_of(text)
    if parts is not None:
        assert found == parts
    assert all(len(part) <= 300 for part in found)


def test_long_sentence_is_cut_at_pauses() -> None:
    clause = "and then we went on to the next town, "
    found = parts_of(clause * 20)
    assert all(part.endswith("town,") for part in found)
    assert len(found) > 3


def test_word_without_end_is_cut() -> None:
    assert [len(part) for part in parts_of("a" * 450)] == [200, 200, 50]


@given(st.lists(st.sampled_from(["a", "b", " ", ".", ",", "\n", "\u3002", "!", "aaaa aaa", "w" * 60]), max_size=400))
def test_parts_keep_all_characters(words: list[str]) -> None:
    text = "".join(words)
    found = parts_of(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(0 < len(part) <= MAX_CHARACTERS for part in found)


@given(st.text(st.sampled_from("ab .,\n\u3002"), min_size=1, max_size=150), st.integers(1, 220))
def test_longest_text_has_few_parts(text: str, length: int) -> None:
    assert len(parts_of((text * 4096)[:4096])) <= MAX_TEXTS
    assert len(parts_of((("a" * length + ". " + text) * 4096)[:4096])) <= MAX_TEXTS


def test_speakers_of_model_bound_the_parameter() -> None:
    several = describe_speakers(TEXT_TO_AUDIO, SimpleNamespace(num_speakers=4, speaking_rate=0.9))
    by_name = {each.name: each for each in several.parameters}
    assert by_name["speaker_id"].maximum == 3
    assert by_name["speaking_rate"].default == 0.9
    one = describe_speakers(TEXT_TO_AUDIO, SimpleNamespace(num_speakers=1))
    assert [each.name for each in one.parameters] == ["speaking_rate", "seed"]
