"""Texts of every format become reasoning, content and calls, however they are cut."""

import json
from collections.abc import Iterable
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.core.settings.entries import ToolFormat
from frameworks.generation.tools.formats import TextFormat
from tests.frameworks.generation.tools.parsing import Parsed, parse

FORMATS: tuple[ToolFormat, ...] = get_args(ToolFormat)
# Parts of texts: marks, structure, and text that resembles them.
PARTS = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "<|python_start|>", "<|python_end|>", '{"name": "f", "arguments": ', '{"name": "g", "parameters": ', "{}", "}", "]",
    "[", "[f(a=1", "f(", ")", ", ", "; ", '"', "\\", "'", "\n", " ", '"arguments"', ": ", "name", "x", "<", "tool",
    "é🚂", '{"a": [1, "}"]}', "a='b'", "g",
]  # fmt: skip
texts = st.lists(st.sampled_from(PARTS) | st.text(max_size=4), max_size=14).map("".join)


def cut(text: str, sizes: Iterable[int]) -> list[str]:
    pieces, rest = [], text
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    return [*pieces, rest]


@pytest.mark.parametrize("tools", [*FORMATS, None])
@settings(max_examples=60)
@given(
    text=texts,
    sizes=st.lists(st.integers(0, 5), max_size=60),
    max_calls=st.sampled_from([None, 1]),
    is_cut=st.booleans(),
)
def test_parts_do_not_depend_on_cuts(
    tools: ToolFormat | None, text: str, sizes: list[int], max_calls: int | None, is_cut: bool
) -> None:
    text_format = TextFormat(tools, thinks=True)
    whole = parse(text_format, [text], max_calls=max_calls, is_cut=is_cut)
    assert parse(text_format, cut(text, sizes), max_calls=max_calls, is_cut=is_cut) == whole
    assert parse(text_format, text, max_calls=max_calls, is_cut=is_cut) == whole
    assert len(whole.calls) <= (max_calls or len(whole.calls))


arguments = st.dictionaries(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 10**18) | st.text(max_size=8) | st.floats(-1e9, 1e9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
values = arguments.flatmap(lambda given: st.sampled_from([*given.values()] or [1]))
named_values = st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), values, max_size=3)


def written(tools: ToolFormat, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """Return calls as models of the format write them."""
    key = "parameters" if tools == "llama3_json" else "arguments"
    objects = [json.dumps({"name": name, key: given}, ensure_ascii=len(name) % 2 == 0) for name, given in calls]
    match tools:
        case "hermes":
            return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects)
        case "llama3_json":
            return "; ".join(objects)
        case "mistral":
            return f"[TOOL_CALLS] [{', '.join(objects)}]"
        case "mistral_args":
            return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(given)}" for name, given in calls)
        case "pythonic":
            return f"[{', '.join(_in_python(name, given) for name, given in calls)}]"


def _in_python(name: str, given: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"


@pytest.mark.parametrize("tools", FORMATS)
@settings(max_examples=60)
@given(data=st.data())
def test_written_calls_are_found_whole(tools: ToolFormat, data: st.DataObject) -> None:
    given_arguments = named_values if tools == "pythonic" else arguments
    calls = data.draw(st.lists(st.tuples(st.sampled_from("fg"), given_arguments), min_size=1, max_size=3))
    parsed = parse(TextFormat(tools), written(tools, calls))
    assert (parsed.content, parsed.reasoning) == ("", "")
    assert [(name, json.loads(text)) for name, text in parsed.calls] == [
        (name, json.loads(json.dumps(given))) for name, given in calls
    ]


@pytest.mark.parametrize(
    ("tools", "text", "expected"),
    [
        ("hermes", "Hi. \n<tool_call>{}", Parsed("Hi. \n<tool_call>{}")),
        ("hermes", 'a <tool_call>{"name": "f"}</tool_call> b', Parsed("a b", calls=[("f", "{}")])),
        ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}', Parsed(calls=[("f", '{"a": 1}')])),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', Parsed(calls=[("f", '{"a": 1}')])),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a', Parsed(calls=[("f", '{"a')])),
        ("hermes", '<tool_call>{"name": ["f"]}</tool_call>', Parsed('<tool_call>{"name": ["f"]}</tool_call>')),
        ("llama3_json", ' {"answer": 42}', Parsed(' {"answer": 42}')),
        ("llama3_json", '{"name": "John"}', Parsed('{"name": "John"}')),
        ("llama3_json", '<|python_tag|>{"name": "John"}', Parsed(calls=[("John", "{}")])),
        ("llama3_json", 'I say {"name": "f"}', Parsed('I say {"name": "f"}')),
        ("mistral", "[TOOL_CALLS] []", Parsed("[TOOL_CALLS] []")),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]a1[ARGS]{"a": 1}', Parsed(calls=[("f", '{"a": 1}')])),
        ("pythonic", "[1, 2, 3]", Parsed("[1, 2, 3]")),
        ("pythonic", "[h(a=1)]", Parsed("[h(a=1)]")),
        ("pythonic", "[f(a=(1, None), b={'k': True})]", Parsed(calls=[("f", '{"a": [1, null], "b": {"k": true}}')])),
        ("pythonic", r"[f(a='\x41\u00e9\'\n', b=1_000)]", Parsed(calls=[("f", '{"a": "Aé\'\\n", "b": 1000}')])),
        ("pythonic", "[f(a=os.system)]", Parsed(")]", calls=[("f", '{"a": ')])),
    ],
)
def test_unusual_text_is_read(tools: ToolFormat, text: str, expected: Parsed) -> None:
    assert parse(TextFormat(tools), [text]) == expected


CALLS: list[tuple[str, dict[str, Any]]] = [("f", {"a": ["}", "é"]}), ("get", {"b": None})]


@pytest.mark.parametrize("tools", FORMATS)
@pytest.mark.parametrize("reasoning", ["", "<think>\nso\n</think>\n\n"])
def test_cut_calls_leave_no_markup(tools: ToolFormat, reasoning: str) -> None:
    text = reasoning + written(tools, CALLS)
    for end in range(len(text)):
        parsed = parse(TextFormat(tools, thinks=True), [text[:end]], ["f", "get"], is_cut=True)
        assert parsed.content.strip() == "", text[:end]
        assert "so".startswith(parsed.reasoning)
        assert [name for name, _ in parsed.calls] == ["f", "get"][: len(parsed.calls)]


@pytest.mark.parametrize(
    ("tools", "text", "expected"),
    [
        ("hermes", "Hi. \n<tool_call>\n", Parsed("Hi.")),
        ("hermes", "Hi <tool", Parsed("Hi")),
        ("hermes", 'Hi <tool_call>{"name": "f", "arguments": {"a": 1', Parsed("Hi", calls=[("f", '{"a": 1')])),
        ("hermes", "a <b", Parsed("a <b")),
        ("llama3_json", '{"na', Parsed("")),
        ("llama3_json", '{"type": "function", "na', Parsed("")),
        ("llama3_json", '{"type": "fruit", "na', Parsed('{"type": "fruit", "na')),
        ("llama3_json", '{"answer": [1, 2', Parsed('{"answer": [1, 2')),
        ("llama3_json", '{"name": "John', Parsed('{"name": "John')),
        ("pythonic", "[1, 2", Parsed("[1, 2")),
        ("pythonic", "[word", Parsed("[word")),
    ],
)
def test_cut_text_keeps_content(tools: ToolFormat, text: str, expected: Parsed) -> None:
    assert parse(TextFormat(tools), [text], is_cut=True) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nso so \n</think>\n\nYes. ", Parsed("Yes. ", "so so")),
        ("\n<think>so", Parsed("", "so")),
        ("Yes <think>no</think>", Parsed("Yes <think>no</think>")),
        ("<thin", Parsed("<thin")),
        ("<think><tool_call></think>No.", Parsed("No.", "<tool_call>")),
        ('<think>a</think>\n<tool_call>{"name": "f"}', Parsed("", "a", [("f", "{}")])),
    ],
)
def test_thinking_precedes_content(text: str, expected: Parsed) -> None:
    assert parse(TextFormat("hermes", thinks=True), text) == expected


def test_nesting_of_any_depth_is_read() -> None:
    deep = "[" * 100_000
    for tools in FORMATS:
        assert parse(TextFormat(tools), ["[f(a=" if tools == "pythonic" else "<tool_call>{", deep]) is not None


@pytest.mark.extended
def test_long_text_takes_linear_time() -> None:
    """Quadratic work on these would take minutes."""
    call = '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * 50 + '"}}</tool_call>\n'
    assert len(parse(TextFormat("hermes"), [call * 4000]).calls) == 4000
    assert len(parse(TextFormat("hermes"), "[" * 200_000 + "<tool_call" * 20_000).content) == 400_000
