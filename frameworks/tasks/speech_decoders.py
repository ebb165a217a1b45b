"""Describe the task of a model that writes the text of a sound token by token, such as Whisper."""

from collections.abc import Iterable
from dataclasses import replace

from frameworks.tasks.table import MAX_WINDOW_S, TASKS
from frameworks.tasks.types import TaskParameter, TaskSpec

SPEECH_TASK = "automatic-speech-recognition"
_MAX_BEAMS = 16
"""As MAX_BEAMS of the generation of texts, which tasks do not import."""
_MAX_PROMPT_CHARACTERS = 10_000
_MAX_NEW_TOKENS = 4096

_PARAMETERS = (
    TaskParameter(
        "temperature", "number_or_numbers", [0.0], 0, 2,
        description="Temperature of sampling; of several, each next one is for a text that a threshold rejects.",
    ),
    TaskParameter("num_beams", "integer", None, 1, _MAX_BEAMS, description="Texts that a beam search continues."),
    TaskParameter("max_new_tokens", "integer", None, 1, _MAX_NEW_TOKENS, description="Most tokens of a window's text."),
    TaskParameter("seed", "integer", None, 0, 2**63 - 1, description="Seed of sampled texts; a new one by default."),
    TaskParameter("return_duration", "boolean", False, description="Whether the seconds of the sound are returned."),
    TaskParameter(
        "return_timestamps", "boolean_or_string", False, choices=("word",),
        description="Whether parts of the text, or words, are returned with their times.",
    ),
    TaskParameter(
        "return_segments", "boolean", False,
        description="Whether parts are returned with times, tokens, log probability and temperature.",
    ),
    TaskParameter("return_language", "boolean", False, description="Whether the language of parts is returned."),
    TaskParameter(
        "chunk_length_s", "number", None, 1, MAX_WINDOW_S,
        description="Seconds of windows that are transcribed beside each other; by default one follows another.",
    ),
    TaskParameter(
        "stride_length_s", "number", None, 0, MAX_WINDOW_S,
        description="Seconds that a window has in common with each neighbour; a sixth of a window by default.",
    ),
    TaskParameter(
        "prompt", "string", None, 0, _MAX_PROMPT_CHARACTERS, description="Text that the first window follows."
    ),
    TaskParameter(
        "condition_on_prev_tokens", "boolean", None, description="Whether a window follows the text before it."
    ),
    TaskParameter(
        "compression_ratio_threshold", "number", None, 0, 1000,
        description="A text that is compressed by more repeats itself, and is rejected.",
    ),
    TaskParameter(
        "logprob_threshold", "number", None, -1000, 0,
        description="A text whose tokens have a lower mean log probability is rejected.",
    ),
    TaskParameter(
        "no_speech_threshold", "number", None, 0, 1,
        description="A rejected text of a window whose probability of no speech is higher is left out.",
    ),
)  # fmt: skip


def speech_task(languages: Iterable[str], tasks: Iterable[str]) -> TaskSpec:
    """Return the task of a model. `languages`: their codes. `tasks`: `transcribe`, `translate`. Both are empty for a
    model that has one.
    """
    parameters = [*_PARAMETERS]
    languages, tasks = tuple(languages), tuple(tasks)
    if languages:
        text = "Language of the speech, by its code; it is detected by default."
        parameters.insert(0, TaskParameter("language", "string", choices=languages, description=text))
    if tasks:
        text = "Whether the text is in the language of the speech, or in English."
        parameters.insert(1, TaskParameter("task", "string", choices=tasks, description=text))
    return replace(TASKS[SPEECH_TASK], parameters=tuple(parameters), random_without="seed")
