"""Dialogues made from documentation: roles, contents and lengths."""

import random

import pytest

from tools.training import dialogues
from tools.training.prose import Entry, Kind

LONG = Entry("shlex.quote", "function", ("Return an escaped version of the string." + " It is long." * 30, "The end."))


@pytest.mark.parametrize(
    ("name", "kind", "answer"),
    [
        ("json", "module", True),
        ("json", "comment", False),
        ("json._private", "function", False),
        ("_json.name", "class", False),
        ("list.__init__", "function", False),
    ],
)
def test_can_be_asked_about_needs_public_name(name: str, kind: Kind, answer: bool) -> None:
    assert dialogues.can_be_asked_about(Entry(name, kind, ("A text.",))) is answer


@pytest.mark.parametrize("kind", ["module", "class", "function", "topic"])
def test_dialogue_asks_for_entry_and_answers(kind: Kind) -> None:
    entry = Entry("expression lists", kind, ("They are lists of things.", "There is more."))
    for seed in range(20):
        *system, question, answer = dialogues.dialogue(entry, random.Random(seed))
        assert [x["role"] for x in system] in ([], ["system"])
        assert question["role"] == "user"
        assert "expression lists" in question["content"]
        assert answer == {"role": "assistant", "content": "They are lists of things. There is more."}


def test_long_text_is_split_over_answers() -> None:
    said = [dialogues.dialogue(LONG, random.Random(seed)) for seed in range(20)]
    assert {len([x for x in messages if x["role"] == "assistant"]) for messages in said} == {1, 2}
    for messages in said:
        answers = [x["content"] for x in messages if x["role"] == "assistant"]
        assert all(len(answer) <= dialogues.ANSWER_LENGTH for answer in answers)
        assert " ".join(LONG.paragraphs).startswith(" ".join(answers))
        assert len(answers) == 1 or [x for x in messages if x["role"] == "user"][1]["content"] in dialogues.MORE


def test_dialogue_is_deterministic_for_seed() -> None:
    assert dialogues.dialogue(LONG, random.Random(3)) == dialogues.dialogue(LONG, random.Random(3))
    first, second = dialogues.small_talk(random.Random(3))[-2:]
    assert (first["content"], second["content"]) in dialogues.SMALL_TALK
