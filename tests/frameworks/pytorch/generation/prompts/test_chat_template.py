"""Prompts equal those of transformers; broken and endless templates are refused."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import transformers

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.generation.types import Message, MessageCall, MessageImage
from frameworks.pytorch.generation.prompts.chat_template import ChatTemplate
from tests.support.models.generation_tokenizers import CHAT_TEMPLATE, write_generation_tokenizer
from tests.support.models.tool_templates import TEMPLATES as TOOL_TEMPLATES

TALK = (
    Message("system", "You are an engine."),
    Message("user", "  Where <do> you run & {{why}}?\n"),
    Message("assistant", "你好 🚂 on steam"),
    Message("user", ""),
)
# Features of transformers' environment beyond those of jinja.
TEMPLATES = (
    CHAT_TEMPLATE,
    "{{ messages }}|{{ tools }}|{{ documents }}|{{ add_generation_prompt }}|{{ eos_token }}",
    (
        "{% set ns = namespace(last='') %}{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
        "{% set ns.last = m.role %}{% endfor %}{{ ns.last * 2 }}{{ 2 ** 3 }}{{ 3 * 4 }}"
    ),
    (
        "{% macro turn(m) %}[{{ m.role | upper }}]{{ caller() }}{% endmacro %}"
        "{% for m in messages %}{% call turn(m) %}{{ m.content | tojson }}{% endcall %}{% endfor %}"
    ),
    (
        "{% for m in messages %}\n  {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}\n"
        "  {% else %}\n  {{- m.content -}}\n  {% endif %}\n{% endfor %}\n"
    ),
    "{%- for x in [1, [2, [3]]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}",
    "{{ dict(a=1).items() | list }}{{ messages[0].missing }}{{ strftime_now('%%') }}{{ ''.__class__ }}",
)


def rendered_by_transformers(folder: Path, template: str) -> str:
    write_generation_tokenizer(folder, chat_template=template)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    messages = [{"role": message.role, "content": message.content} for message in TALK]
    text: str = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return text


@pytest.mark.parametrize("template", TEMPLATES)
def test_prompt_equals_transformers(tmp_path: Path, template: str) -> None:
    variables = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert ChatTemplate(template, variables).render(TALK) == rendered_by_transformers(tmp_path, template)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].name.first }}", "has no attribute 'name'"),
        ("{{ messages[7].content }}", "no element 7"),
        ("{{ 1 + messages[0].role }}", "unsupported operand"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{{ ''.__class__.__mro__ }}", "unsafe|undefined"),
        ("{% include 'passwords' %}", "loader"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion"),
    ],
)
def test_messages_refused_by_template_raise(template: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"(?s)^messages: refused by the model's chat template.*({reason})"):
        ChatTemplate(template, {}).render(TALK)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}{{ twice(60) }}",
        "{% for x in [[1, 1, 1]] recursive %}{% if x is iterable %}{{ loop([x, x, x]) }}{% endif %}{% endfor %}",
    ],
)
def test_endless_template_is_stopped(template: str) -> None:
    with pytest.raises(InvalidInput, match=r"messages: .*(longer than 0\.05 seconds|recursion)"):
        ChatTemplate(template, {}, max_seconds=0.05).render(TALK)


def test_time_limit_applies_to_each_rendering() -> None:
    template = ChatTemplate("{% for i in range(3000) %}{% endfor %}", {}, max_seconds=0.2)
    assert {template.render(TALK) for _ in range(300)} == {""}


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for i in range(99999) %}{{ 'many' }}{% endfor %}", "more than 1000 characters"),
        ("{{ 'x' * 10 ** 12 }}", "repeats a text"),
        ("{{ 10 ** 12 * [1] }}", "repeats a text"),
        ("{{ 10 ** (10 ** 10) }}", "power"),
        ("{{ messages[0].content * 600 }}", "repeats a text"),
    ],
)
def test_long_prompt_is_refused(template: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"messages: .*{reason}"):
        ChatTemplate(template, {}, max_characters=1000).render(TALK)


@pytest.mark.parametrize(
    "template", ["{% for m in messages %}", "{{ messages", "{% unknown %}", "{{ x | unknown }}", "{{ " + "(" * 9000]
)
def test_invalid_template_is_refused(template: str) -> None:
    with pytest.raises(InvalidModel, match=r"^the chat template cannot be compiled: \w"):
        ChatTemplate(template, {})


def test_empty_messages_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^messages: expected at least one message, got none"):
        ChatTemplate(CHAT_TEMPLATE, {}).render(())


def test_bounds_are_not_shared_by_models() -> None:
    source = "{% for i in range(300) %}12345{% endfor %}"
    narrow, wide = ChatTemplate(source, {}, max_characters=1000), ChatTemplate(source, {})
    assert len(wide.render(TALK)) == 1500
    with pytest.raises(InvalidInput):
        narrow.render(TALK)


def test_rendering_works_in_threads() -> None:
    template = ChatTemplate(CHAT_TEMPLATE, {"bos_token": "<s>", "eos_token": "</s>"})

    def ask(number: int) -> bool:
        return all(f"number {number}" in template.render((Message("user", f"number {number}"),)) for _ in range(50))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(ask, range(8)))


TOOLS = [{"type": "function", "function": {"name": "f", "description": "é", "parameters": {"type": "object"}}}]
CALLS = (
    Message("user", "How warm?"),
    Message("assistant", "", (MessageCall("abcdefghi", "f", '{"city": "Köln", "days": [1, 2]}'),), reasoning="Hm."),
    Message("tool", "12 °C", tool_call_id="abcdefghi", name="f"),
)
CALLS_AS_SENT = [
    {"role": "user", "content": "How warm?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {
                "id": "abcdefghi",
                "type": "function",
                "function": {"name": "f", "arguments": {"city": "Köln", "days": [1, 2]}},
            }
        ],
    },
    {"role": "tool", "content": "12 °C", "tool_call_id": "abcdefghi", "name": "f"},
]


@pytest.mark.parametrize("template", TOOL_TEMPLATES.values())
def test_prompt_with_tools_equals_transformers(tmp_path: Path, template: str) -> None:
    write_generation_tokenizer(tmp_path, chat_template=template)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    ours = ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})
    for tools in (None, TOOLS):
        text = tokenizer.apply_chat_template(CALLS_AS_SENT, tools=tools, add_generation_prompt=True, tokenize=False)
        assert ours.render(CALLS, json.dumps(tools) if tools else "") == text
        assert "Köln" in text


def test_reasoning_effort_reaches_template() -> None:
    template = ChatTemplate("{{ reasoning_effort }}{{ enable_thinking }}", {})
    assert template.has_reasoning_effort
    prompts = [template.render(TALK, reasoning_effort=each) for each in (None, "none", "low")]
    assert prompts == ["", "noneFalse", "lowTrue"]
    assert not ChatTemplate("{{ messages }}", {}).has_reasoning_effort


def test_variables_of_request_reach_template() -> None:
    source = (
        "{{ date_string }}|{{ enable_thinking }}|{{ bos_token }}{% if messages and tools %}{{ range(2) }}{% endif %}"
    )
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert template.variables == {"date_string", "enable_thinking"}
    variables = json.dumps({"date_string": "today", "enable_thinking": True})
    assert template.render(TALK, reasoning_effort="none", variables=variables) == "today|True|<s>"


def test_arguments_cut_off_stay_text() -> None:
    cut = Message("assistant", "", (MessageCall("1", "f", '{"a": "'),))
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments }}", {})
    assert template.render((cut,)) == '{"a": "'


def with_images(content: str, *ats: int, role: str = "user") -> Message:
    """Return a message with an image at each offset of its content."""
    return Message(role, content, images=tuple(MessageImage(b"1", at, "image") for at in ats))


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        (with_images("abc", 0), [None, "abc"]),
        (with_images("abc", 3), ["abc", None]),
        (with_images("abc", 2), ["ab", None, "c"]),
        (with_images("abc", 0, 0, 1, 3, 3), [None, None, "a", None, "bc", None, None]),
        (with_images("", 0), [None]),
        (with_images("", 0, 0), [None, None]),
        (with_images("é🚂 \n", 2), ["é🚂", None, " \n"]),
    ],
)
def test_image_stays_between_its_texts(message: Message, parts: list[str | None]) -> None:
    template = ChatTemplate("{{ messages[0].content | tojson }}", {})
    expected = [{"type": "image"} if part is None else {"type": "text", "text": part} for part in parts]
    for part_roles in ((), ("user",)):
        assert json.loads(template.render((message,), part_roles=part_roles)) == expected


def test_only_messages_with_images_have_parts() -> None:
    template = ChatTemplate("{{ messages | map(attribute='content') | list | tojson }}", {})
    talk = (Message("system", "a"), with_images("b", 1), Message("assistant", ""), Message("user", "c"))
    image, text = {"type": "image"}, [{"type": "text", "text": "c"}]
    assert json.loads(template.render(talk)) == ["a", [{"type": "text", "text": "b"}, image], "", "c"]
    assert json.loads(template.render(talk, part_roles=("user",)))[3] == text


def test_prompt_with_images_equals_transformers(tmp_path: Path) -> None:
    source = (
        "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}{% endif %}"
        "{% endfor %}"
    )
    write_generation_tokenizer(tmp_path, chat_template=source)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    image, words = {"type": "image"}, [{"type": "text", "text": each} for each in ("Which ", " is it?")]
    sent = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [image, words[0], image, image, words[1]]},
        {"role": "tool", "content": [image]},
    ]
    talk = (Message("system", "Be short."), with_images("Which  is it?", 0, 6, 6), with_images("", 0, role="tool"))
    text = tokenizer.apply_chat_template(sent, tokenize=False)
    assert ChatTemplate(source, {}).render(talk) == text
    assert text == "<system>Be short.<user><image>Which <image><image> is it?<tool><image>"


def test_calls_and_reasoning_stay_beside_images() -> None:
    images = (MessageImage(b"1", 0, "image"),)
    message = Message("assistant", "a", (MessageCall("1", "f", "{}"),), name="n", reasoning="Hm.", images=images)
    turn = json.loads(ChatTemplate("{{ messages[0] | tojson }}", {}).render((message,)))
    assert turn.pop("content") == [{"type": "image"}, {"type": "text", "text": "a"}]
    plain = Message("assistant", "a", message.tool_calls, name="n", reasoning="Hm.")
    assert json.loads(ChatTemplate("{{ messages[0] | tojson }}", {}).render((plain,))) == turn | {"content": "a"}
