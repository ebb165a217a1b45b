"""Generate dialogues in which functions are offered, called, or not needed: the second stage of ``tiny-llama``.

A model that saw only calls would call functions in every dialogue. So some users ask what no function offered can do,
or offer none at all, and get an answer in words.
"""

import json
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tools.training import dialogues
from tools.training.prose import Entry
from tools.training.tool_tasks import TASKS, Task, result_of, value_of

MAX_OTHERS = 2
"""Functions offered besides the one that is needed."""
RESULT_SHARE = 0.7
"""Share of calls that the dialogue continues with the result and the answer."""
AGAIN_SHARE = 0.3
"""Share of answered calls after which the user asks again."""

PLAIN_SHARE = 0.6
"""Share of results that are no JSON object."""
HELD_OUT_ONE_IN = 8

NO_FUNCTION = "I have no function for that."
UNKNOWN = "I do not know. I was trained on the documentation of Python."
_THINGS = "grass snow fire sand rain moon sun night sea wind ice iron gold glass river lake forest mountain"
_BEINGS = "birds fish cats dogs horses bees cows ships cars planes bridges flowers trees kings farmers cooks"
_QUALITIES = "green white hot cold dark wet heavy loud old deep soft bright"
_ODD_QUESTIONS = (
    "Why is the {thing} {quality}?", "Is the {thing} {quality}?", "Where do {beings} live?", "What do {beings} eat?",
    "Who likes {beings}?", "How many {beings} are there?", "Do you like {beings}?", "Write a poem about {beings}.",
    "Why are {beings} so {quality}?", "How old is the {thing}?", "Sing a song about the {thing}.",
)  # fmt: skip


def tool_of(task: Task) -> dict[str, Any]:
    """Return the definition of a task's function as a chat request has it."""
    schema = {
        "type": "object",
        "properties": {each.name: {"type": each.json_type} for each in task.parameters},
        "required": [each.name for each in task.parameters],
    }
    return {"type": "function", "function": {"name": task.name, "description": task.description, "parameters": schema}}


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Messages of a chat, and the tools that it offers."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, the call that it needs, what the call gives, and the answer."""

    question: str
    name: str
    arguments: dict[str, Any]
    result: str
    answer: str


def with_tools(entries: Sequence[Entry], chance: random.Random) -> Dialogue:
    """Return one dialogue of a random sort. `entries`: those that can be asked about."""
    sort = chance.random()
    if sort < 0.6:
        return _called(chance)
    offers = offered(chance.choice(TASKS), chance)
    tools = [tool_of(each) for each in offers]
    if sort < 0.68:  # functions are offered, but not the one that is needed
        missing = [task for task in TASKS if task not in offers]
        return Dialogue(_said(ask(chance.choice(missing), chance).question, NO_FUNCTION), tools)
    if sort < 0.78:
        return Dialogue(_plain(entries, chance), tools)
    if sort < 0.84:
        return Dialogue(_plain(entries, chance), [])
    if sort < 0.92:  # a question for a function, but none is offered
        return Dialogue(_said(ask(offers[0], chance).question, NO_FUNCTION), [])
    return Dialogue(_said(_odd_question(chance), UNKNOWN), tools if sort < 0.96 else [])


def offered(task: Task, chance: random.Random) -> list[Task]:
    """Return a task and up to MAX_OTHERS other ones."""
    return [task, *chance.sample([each for each in TASKS if each is not task], chance.randint(0, MAX_OTHERS))]


def ask(task: Task, chance: random.Random, held_out: bool = False) -> Asked:
    """Return a question for a function. `held_out`: one that training never sees, else one of the others."""
    while True:
        values = [value_of(each.kind, chance) for each in task.parameters]
        question = chance.choice(task.questions).format(*values)
        if (zlib.crc32(question.encode()) % HELD_OUT_ONE_IN == 0) == held_out or not values:
            break
    result = result_of(task, values, chance)
    written = result if isinstance(result, str) else json.dumps(result)
    return Asked(
        question,
        task.name,
        dict(zip([each.name for each in task.parameters], values, strict=True)),
        written if chance.random() < PLAIN_SHARE else json.dumps({task.result_name: result}),
        task.answer.format(*values, result=result),
    )


def call_messages(asked: Asked) -> list[dict[str, Any]]:
    """Return the question and the call, as messages of a chat request."""
    function = {"name": asked.name, "arguments": asked.arguments}
    return [
        {"role": "user", "content": asked.question},
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]},
    ]


def _called(chance: random.Random) -> Dialogue:
    offers = offered(chance.choice(TASKS), chance)
    messages = _system(chance)
    offer = offers[0]
    while True:
        asked = ask(offer, chance)
        messages += call_messages(asked)
        if chance.random() >= RESULT_SHARE:
            break
        messages += [{"role": "tool", "content": asked.result}, {"role": "assistant", "content": asked.answer}]
        if chance.random() >= AGAIN_SHARE:
            break
        offer = chance.choice(offers)
    chance.shuffle(offers)
    return Dialogue(messages, [tool_of(each) for each in offers])


def _plain(entries: Sequence[Entry], chance: random.Random) -> list[dict[str, Any]]:
    talk = dialogues.dialogue(chance.choice(entries), chance) if chance.random() < 0.8 else dialogues.small_talk(chance)
    return [dict(message) for message in talk]


def _said(question: str, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _system(chance: random.Random) -> list[dict[str, Any]]:
    if chance.random() >= dialogues.SYSTEM_SHARE:
        return []
    return [{"role": "system", "content": chance.choice(dialogues.SYSTEM)}]


def _odd_question(chance: random.Random) -> str:
    return chance.choice(_ODD_QUESTIONS).format(
        thing=chance.choice(_THINGS.split()),
        beings=chance.choice(_BEINGS.split()),
        quality=chance.choice(_QUALITIES.split()),
    )
