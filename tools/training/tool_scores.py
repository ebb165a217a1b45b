"""Measure how ``tiny-llama`` calls functions: held-out questions, results, and dialogues without functions."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tools.training import dialogues
from tools.training.prose import Entry
from tools.training.tool_dialogues import Dialogue, ask, call_messages, offered, tool_of
from tools.training.tool_tasks import TASKS

CALL = "<tool_call>"
_BATCH = 50
_MAX_ANSWER_TOKENS = 100


@dataclass(frozen=True, slots=True)
class Scores:
    """Shares from 0 to 1."""

    calls: float
    """Held-out questions with exactly the right call."""
    answers: float
    """Right answers to results of functions."""
    unneeded: float
    """Calls where functions are offered, and the question is about an entry of the documentation."""
    unwanted: float
    """Calls where no function is offered."""


def measured(model: Any, tokenizer: Any, entries: Sequence[Entry], questions: int, seed: int) -> Scores:
    """Return the scores of greedy answers to this number of questions of each sort. `entries`: held-out ones."""
    chance = random.Random(seed)
    asked_for_call, calls, asked_for_answer, answers = [], [], [], []
    unneeded: list[Dialogue] = []
    unwanted: list[Dialogue] = []
    for number in range(questions):
        offers = offered(TASKS[number % len(TASKS)], chance)
        asked = ask(offers[0], chance, held_out=True)
        chance.shuffle(offers)
        tools = [tool_of(each) for each in offers]
        question, call = call_messages(asked)
        asked_for_call.append(Dialogue([question], tools))
        calls.append(_written(Dialogue([question, call], tools), tokenizer))
        asked_for_answer.append(Dialogue([question, call, {"role": "tool", "content": asked.result}], tools))
        answers.append(asked.answer)
        about = [dict(each) for each in dialogues.dialogue(chance.choice(entries), chance) if each["role"] == "user"]
        unneeded.append(Dialogue(about[:1], tools))
        unwanted += [Dialogue([question], []), Dialogue(about[:1], [])]
    said = respond(model, tokenizer, [*asked_for_call, *asked_for_answer, *unneeded, *unwanted])
    to_calls, to_results, others = said[:questions], said[questions : 2 * questions], said[2 * questions :]
    return Scores(
        calls=_share([one == other for one, other in zip(to_calls, calls, strict=True)]),
        answers=_share([one == other for one, other in zip(to_results, answers, strict=True)]),
        unneeded=_share([CALL in each for each in others[:questions]]),
        unwanted=_share([CALL in each for each in others[questions:]]),
    )


def respond(model: Any, tokenizer: Any, asked: Sequence[Dialogue]) -> list[str]:
    """Return the greedy response of the model to each dialogue, without the token that ends it."""
    prompts = [_written(each, tokenizer, add_generation_prompt=True) for each in asked]
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    said = [""] * len(prompts)
    for first in range(0, len(order), _BATCH):
        chosen = order[first : first + _BATCH]
        batch = tokenizer([prompts[x] for x in chosen], add_special_tokens=False, padding=True, return_tensors="pt")
        with torch.inference_mode():
            made = model.generate(**batch, do_sample=False, max_new_tokens=_MAX_ANSWER_TOKENS)
        for index, row in zip(chosen, made[:, batch["input_ids"].shape[1] :], strict=True):
            said[index] = tokenizer.decode(row, skip_special_tokens=True)
    return said


def _written(dialogue: Dialogue, tokenizer: Any, **options: Any) -> str:
    """Return a dialogue as text; without a generation prompt, only what its last message holds."""
    text: str = tokenizer.apply_chat_template(
        dialogue.messages, tools=dialogue.tools or None, tokenize=False, **options
    )
    if options:
        return text
    return text.rpartition(dialogues.ASSISTANT)[2].removesuffix(dialogues.END_OF_TURN)


def _share(right: Sequence[bool]) -> float:
    return sum(right) / len(right)
