"""Describe speech from text: its parameters, bounds, and the parts of a long text."""

import re
from dataclasses import replace
from typing import Any

from frameworks.tasks.types import TaskParameter, TaskSpec

TASK_NAME = "text-to-audio"
MAX_CHARACTERS = 600
"""Of one text, which is one run of the model: attention has the product of its tokens with themselves in memory."""
MAX_TEXTS = 64
"""Texts of one request. The sounds of all of them are in memory together."""
MAX_SECONDS = 60.0
"""The longest sound of one text. It is computed in one piece."""
MAX_SEED = 2**32 - 1

_SPEAKER = TaskParameter(
    "speaker_id",
    "integer",
    minimum=0,
    maximum=1_000_000,
    description="Number of the speaker, of a model with several.",
)
_RATE = TaskParameter(
    "speaking_rate",
    "number",
    minimum=0.1,
    maximum=10.0,
    description="Factor of the speed; the model's own by default.",
)
_SEED = TaskParameter(
    "seed", "integer", minimum=0, maximum=MAX_SEED, description="Equal seeds give equal sounds; random by default."
)

TEXT_TO_AUDIO = TaskSpec(
    TASK_NAME,
    ("text",),
    (_SPEAKER, _RATE, _SEED),
    required=("text",),
    max_inputs=MAX_TEXTS,
    max_characters=MAX_CHARACTERS,
    random_without="seed",
)

# Longer parts are natural sentences; shorter ones would be many runs.
_PART_CHARACTERS = 200
_FULL_CHARACTERS = 100
# After the end of a sentence, in scripts with and without spaces; a line ends a sentence too.
_WIDE_MARKS = frozenset("\u3001\u3002\uff01\uff0c\uff1f")
_SENTENCE_ENDS = re.compile("(?<=[.!?\u2026;])\\s+|(?<=[\u3002\uff01\uff1f])\\s*|\\n+")
_PAUSES = re.compile("(?<=[,:)\u2014])\\s+|(?<=[\u3001\uff0c])\\s*")


def describe_speakers(task: TaskSpec, config: Any) -> TaskSpec:
    """Return the task of one model: its own rate as the default, and its number of speakers as a bound.

    `config`: of transformers' VitsModel.
    """
    num_speakers = getattr(config, "num_speakers", 1)
    parameters = [replace(_RATE, default=float(getattr(config, "speaking_rate", 1.0))), _SEED]
    if num_speakers > 1:
        parameters.insert(0, replace(_SPEAKER, maximum=num_speakers - 1))
    return replace(task, parameters=tuple(parameters))


def parts_of(text: str) -> list[str]:
    """Return the parts of a text that are spoken one after the other: sentences, some together, none too long.

    Their characters but white space are those of the text. Empty for white space.
    """
    parts: list[str] = []
    for sentence in _pieces(text, _SENTENCE_ENDS):
        for piece in _cut(sentence):
            if parts and _belong_together(parts[-1], piece):
                # No space follows the wide marks: the parts would be longer than the text.
                parts[-1] += piece if parts[-1][-1] in _WIDE_MARKS else f" {piece}"
            else:
                parts.append(piece)
    return parts


def _belong_together(part: str, piece: str) -> bool:
    """Whether a piece is spoken with the part before it: a short one, or one that alone may have nothing to speak."""
    length = len(part) + len(piece) + 1
    is_short = len(part) < _FULL_CHARACTERS and length <= _PART_CHARACTERS
    return is_short or (length <= MAX_CHARACTERS and not (_has_letters(part) and _has_letters(piece)))


def _has_letters(text: str) -> bool:
    return any(map(str.isalpha, text))


def _cut(sentence: str) -> list[str]:
    """Return a sentence in parts of at most `_PART_CHARACTERS`: at pauses, else at spaces, else anywhere."""
    if len(sentence) <= _PART_CHARACTERS:
        return [sentence]
    found: list[str] = []
    for clause in _pieces(sentence, _PAUSES):
        words = [
            word[at : at + _PART_CHARACTERS] for word in clause.split() for at in range(0, len(word), _PART_CHARACTERS)
        ]
        line = ""
        for word in words:
            if line and len(line) + 1 + len(word) > _PART_CHARACTERS:
                found.append(line)
                line = word
            else:
                line = f"{line} {word}" if line else word
        if line:
            found.append(line)
    return found


def _pieces(text: str, ends: re.Pattern[str]) -> list[str]:
    return [stripped for each in ends.split(text) if (stripped := each.strip())]
