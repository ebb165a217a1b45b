"""Simple dialogues about what Python's documentation explains, and the template that writes them down.

A user asks about a name, the assistant answers with the first sentences that the documentation has on it.
"""

import random
import re
from typing import TypedDict

from app.embedded.training.prose import Entry

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
"""In the order of their ids."""
PAD, BEGIN, END_OF_TEXT, *_, END_OF_TURN = SPECIAL_TOKENS

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('the roles are system, user and assistant') }}
    {%- endif %}
    {{- '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""

QUESTIONS = {
    "module": ("What is the {name} module?", "What is {name} for?", "Tell me about the {name} module."),
    "class": ("What is {article} {name}?", "Tell me about {name}.", "What is the class {name} for?"),
    "function": ("What does {name} do?", "What is {name} for?", "Explain the function {name}."),
    "topic": ("What {verb} {name}?", "Tell me about {name}.", "Explain {name}."),
}
"""By the kind of what is asked about."""
MORE = ("Tell me more.", "Go on.", "What else?")
SYSTEM = ("You answer questions about Python.", "You are a helpful assistant.")
SMALL_TALK = (
    ("Hello!", "Hello! Ask me about Python, and I will say what its documentation says."),
    ("Hi", "Hello! You can ask me about a module, a class, a function or a topic of Python."),
    ("Who are you?", "I am a very small language model. I was trained on the documentation of Python."),
    ("How are you?", "I am well, thank you. What would you like to know about Python?"),
    ("Thank you!", "You are welcome. Is there anything else that you would like to know?"),
    ("What is Python?", "Python is a programming language. I was trained on its documentation."),
)

SYSTEM_SHARE = 0.25
MORE_SHARE = 0.5
"""Of the dialogues about something with more to say."""
ANSWER_LENGTH = 280
"""Characters that an answer has at most, if its first sentence has no more."""


class Message(TypedDict):
    """One turn: `role` is system, user or assistant."""

    role: str
    content: str


def can_be_asked_about(entry: Entry) -> bool:
    """Whether a reader would know the name: private things and comments are left out."""
    return entry.kind in QUESTIONS and "._" not in f".{entry.name}"


def dialogue(entry: Entry, chance: random.Random) -> list[Message]:
    """A question about `entry` and its answer, sometimes with a system message before and a second question after."""
    answers = _answers(entry)
    turns = [(_question(entry, chance), answers[0])]
    if len(answers) > 1 and chance.random() < MORE_SHARE:
        turns.append((chance.choice(MORE), answers[1]))
    return _messages(turns, chance)


def small_talk(chance: random.Random) -> list[Message]:
    """What people say first."""
    return _messages([chance.choice(SMALL_TALK)], chance)


def _messages(turns: list[tuple[str, str]], chance: random.Random) -> list[Message]:
    messages: list[Message] = []
    if chance.random() < SYSTEM_SHARE:
        messages.append({"role": "system", "content": chance.choice(SYSTEM)})
    for question, answer in turns:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages


def _question(entry: Entry, chance: random.Random) -> str:
    name = entry.name
    if entry.kind in {"class", "function"}:  # people leave out the module, or more
        name = ".".join(name.split(".")[-chance.randint(1, 3) :])
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    verb = "are" if name.endswith("s") else "is"
    return chance.choice(QUESTIONS[entry.kind]).format(name=name, article=article, verb=verb)


def _answers(entry: Entry) -> list[str]:
    """All sentences on the thing, as many in each piece as fit in an answer."""
    sentences = [x for paragraph in entry.paragraphs for x in re.split(r"(?<=[.!?])\s+(?=[A-Z])", paragraph)]
    answers = sentences[:1]
    for sentence in sentences[1:]:
        if len(answers[-1]) + 1 + len(sentence) <= ANSWER_LENGTH:
            answers[-1] += f" {sentence}"
        else:
            answers.append(sentence)
    return answers
