"""The task of a model that writes the text of a sound token by token."""

from typing import Any

import pytest

from frameworks.tasks.speech_decoders import speech_task
from frameworks.tasks.table import TASKS

TASK = speech_task(("en", "de"), ("transcribe", "translate"))


@pytest.mark.parametrize(
    ("parameters", "is_random"),
    [
        ({}, False),
        ({"temperature": [0.0]}, False),
        ({"temperature": [0.0, 0.4]}, True),
        ({"temperature": [0.7]}, True),
        ({"temperature": [0.7], "seed": 0}, False),
    ],
)
def test_sampled_text_without_seed_is_random(parameters: dict[str, Any], is_random: bool) -> None:
    assert TASK.is_random(parameters) == is_random


def test_tasks_without_samples_are_not_random() -> None:
    assert not any(each.is_random({}) for each in TASKS.values() if not each.random_without)


def test_model_of_one_language_has_no_choice() -> None:
    names = {each.name for each in speech_task((), ()).parameters}
    assert not names & {"language", "task"}
    assert "return_timestamps" in names
