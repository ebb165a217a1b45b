"""The requests of the soak: every kind of text, with reproducible answers."""

import random
from dataclasses import dataclass
from typing import Any

import orjson

from tools.bench.shared.corpus import WORDS
from tools.bench.shared.load import Connection, request_of

_PATH = "/models/llama/infer"
_MOST_PROMPT_WORDS = 20
_MAX_TOKENS = (4, 16, 48, 96)
_CONSTRAINTS: tuple[dict[str, Any], ...] = (
    {"regex": "[0-9]{3}-[a-z]{4,12}"},
    {"choice": ["locomotive", "tender", "carriage"]},
    {
        "json_schema": {
            "type": "object",
            "properties": {"engine": {"enum": ["steam", "diesel"]}, "wheels": {"type": "integer", "maximum": 24}},
            "required": ["engine", "wheels"],
            "additionalProperties": False,
        }
    },
)

Texts = tuple[tuple[str, str], ...]
"""Each choice's text and finish_reason."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and its texts when it runs alone."""

    fields: dict[str, Any]
    texts: Texts = ()

    def request(self, **more: object) -> bytes:
        return request_of(_PATH, orjson.dumps(self.fields | more))


def questions(count: int) -> list[Asked]:
    """Return greedy and seeded requests with one or several choices, stop strings, constraints and penalties."""
    choose = random.Random(0)
    return [Asked(_fields(choose, number)) for number in range(count)]


async def with_answers(port: int, asked: list[Asked]) -> list[Asked]:
    """Return the same requests with the texts that each has alone."""
    connection = await Connection.to(port)
    answered = []
    for each in asked:
        status = await connection.ask(each.request())
        if status != 200:
            raise RuntimeError(f"{each.fields} was answered {status}: {connection.body[:300]!r}")
        answered.append(Asked(each.fields, texts_of(connection.body)))
    connection.close()
    return answered


def texts_of(body: bytes) -> Texts:
    """Return the texts of a whole answer."""
    answer = orjson.loads(body)
    return tuple((choice["text"], choice["finish_reason"]) for choice in answer.get("choices", [answer]))


def _fields(choose: random.Random, number: int) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "prompt": " ".join(choose.choices(WORDS, k=choose.randint(1, _MOST_PROMPT_WORDS))),
        "max_tokens": choose.choice(_MAX_TOKENS),
        "temperature": 0,
    }
    if number % 2:
        fields |= {"temperature": choose.choice((0.7, 1.0, 1.5)), "seed": choose.randrange(2**32)}
        fields |= choose.choice(({}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}, {"repetition_penalty": 1.3}))
    if number % 5 == 0:
        fields["n"] = choose.randint(2, 4)
    if number % 3 == 0:
        fields["stop"] = choose.sample("aeiotnsr", k=2)
    if number % 7 == 0:
        fields |= choose.choice(_CONSTRAINTS)
    return fields
