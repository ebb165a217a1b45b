"""Generate simple dialogues about Python's documentation, and define their chat template.

The user asks about a name. The assistant answers with the first sentences of its documentation.
"""

import random
import re
from typing import TypedDict

from tools.training.prose import Entry

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
"""In the order of their ids."""
PAD, BEGIN, END_OF_TEXT, *_, ASSISTANT, END_OF_TURN = SPECIAL_TOKENS

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- if tools %}
    {{- '<|system|>You may call these functions:' }}
    {%- for tool in tools %}
        {%- set function = tool['function'] %}
        {{- '\\n"' + function['name'] + '": {' }}
        {%- for name, schema in ((function['parameters'] or {})['properties'] or {}).items() %}
            {{- '' if loop.first else ', ' }}
            {{- name | tojson + ': ' }}
            {%- if schema is mapping and schema['enum'] %}
                {%- for value in schema['enum'] %}
                    {{- ('' if loop.first else ' or ') + value | tojson }}
                {%- endfor %}
            {%- elif schema is mapping and schema['type'] is string %}
                {{- schema['type'] }}
            {%- else %}
                {{- 'any' }}
            {%- endif %}
        {%- endfor %}
        {{- '}: ' + (function['description'] or '') | trim }}
    {%- endfor %}
    {{- '<|end|>' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = (message['content'] or '') | trim %}
    {%- if message['role'] == 'tool' %}
        {{- '<|user|><tool_response>\\n' + content + '\\n</tool_response><|end|>' }}
    {%- elif message['role'] in ['system', 'user', 'assistant'] %}
        {{- '<|' + message['role'] + '|>' + content }}
        {%- for call in message['tool_calls'] or [] %}
            {{- '' if loop.first and not content else '\\n' }}
            {{- '<tool_call>\\n{"name": ' + call['function']['name'] | tojson + ', "arguments": ' }}
            {{- call['function']['arguments'] | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|end|>' }}
    {%- else %}
        {{- raise_exception('the roles are system, user, assistant and tool') }}
    {%- endif %}
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
"""Questions by the kind of the entry."""
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
"""Share of dialogues with a second question, for entries with more text."""
ANSWER_LENGTH = 280
"""Maximum characters of an answer, unless its first sentence is longer."""


class Message(TypedDict):
    """One turn: `role` is system, user or assistant."""

    role: str
    content: str


def can_be_asked_about(entry: Entry) -> bool:
    """Return whether an entry has a public name: private names and comments have none."""
    return entry.kind in QUESTIONS and "._" not in f".{entry.name}"


def dialogue(entry: Entry, chance: random.Random) -> list[Message]:
    """Return a question about `entry` and its answer, sometimes with a system message and a second question."""
    answers = _answers(entry)
    turns = [(_question(entry, chance), answers[0])]
    if len(answers) > 1 and chance.random() < MORE_SHARE:
        turns.append((chance.choice(MORE), answers[1]))
    return _messages(turns, chance)


def small_talk(chance: random.Random) -> list[Message]:
    """Return a greeting or another common message, and its answer."""
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
    if entry.kind in {"class", "function"}:  # users omit the module, or more
        name = ".".join(name.split(".")[-chance.randint(1, 3) :])
    article = "an" if name[0] in "aeiouAEIOU" else "a"
    verb = "are" if name.endswith("s") else "is"
    return chance.choice(QUESTIONS[entry.kind]).format(name=name, article=article, verb=verb)


def _answers(entry: Entry) -> list[str]:
    """Return all sentences of an entry, in pieces that fit an answer."""
    sentences = [x for paragraph in entry.paragraphs for x in re.split(r"(?<=[.!?])\s+(?=[A-Z])", paragraph)]
    answers = sentences[:1]
    for sentence in sentences[1:]:
        if len(answers[-1]) + 1 + len(sentence) <= ANSWER_LENGTH:
            answers[-1] += f" {sentence}"
        else:
            answers.append(sentence)
    return answers
