"""Calls of a model with random weights: forced ones meet their schemas, begun ones are held to them."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frameworks.core.errors import InvalidInput
from frameworks.core.settings.entries import ToolFormat
from frameworks.generation.text.marked_stream import MarkedStream, ends_with_opening
from frameworks.generation.tools.definition import ToolSchema, ToolsDefinition
from frameworks.generation.tools.formats import TextFormat
from frameworks.generation.types import Constraint, Conversation, Message, Sampling
from frameworks.pytorch.generation.step.engine import GeneratingModel
from tests.frameworks.generation.tools.parsing import Parsed, parse
from tests.frameworks.pytorch.generation.generating import load_generating, request, tokens_of
from tests.support.models.causal_folders import END_ID, VOCABULARY_SIZE, save_tool_model
from tests.support.models.tool_templates import ALWAYS_THINKING
from tests.support.tool_schemas import parameters

FORMATS: tuple[ToolFormat, ...] = get_args(ToolFormat)
CONTEXT = 2048
ONE_OF_TWO = {
    "type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"], "additionalProperties": False,
}  # fmt: skip
TOOLS = (ToolSchema(0, "f", ONE_OF_TWO),)
BEGINS = {
    "hermes": "Yes. <tool_call>", "llama3_json": '{"name": "f"', "mistral": "Yes. [TOOL_CALLS]",
    "mistral_args": "[TOOL_CALLS]", "pythonic": "[f(",
}  # fmt: skip


@cache
def model_of(tools: ToolFormat) -> GeneratingModel:
    with TemporaryDirectory() as folder:
        path = save_tool_model(Path(folder), tools, max_position_embeddings=CONTEXT)
        model: GeneratingModel = load_generating(path, blocks=2 * CONTEXT // 32)
    return model


@pytest.fixture(scope="module", autouse=True)
def _close_models() -> Iterator[None]:
    yield
    for tools in FORMATS:
        model_of(tools).close()
    model_of.cache_clear()


def text_of(
    model: GeneratingModel, definition: ToolsDefinition, begun: str = "", most: int | None = None, **sampling: Any
) -> str:
    """Return a text of the model, which has begun with `begun`: whole, or its first `most` tokens."""
    matcher = model.constrain(Constraint("tools", definition.to_json()))
    prompt = list(model.tokenizer.encode("call: "))
    begun_ids = list(model.tokenizer.ids_of(begun, False))
    for token_id in begun_ids:
        matcher.accept(token_id)
    options = {"matcher": matcher, "stop_token_ids": frozenset({END_ID})}
    own = request(1, prompt + begun_ids, most or CONTEXT - 64, Sampling(**{"temperature": 0, **sampling}), **options)
    tokens = tokens_of(model, own)[1]
    assert most or tokens[-1].finish_reason == "stop", "the text was cut off"
    marks = TextFormat(definition.tools_format, definition.thinks).marks
    stream = MarkedStream(model.tokenizer.stream(tuple(prompt)), model.tokenizer.special_tokens(marks))
    ids = begun_ids + [token.token_id for token in tokens if token.is_text]
    return "".join(map(stream.push, ids)) + stream.flush()


@pytest.mark.parametrize("tools", FORMATS)
@settings(max_examples=40)
@given(
    schemas=st.lists(parameters, min_size=1, max_size=2),
    sizes=st.lists(st.integers(1, 9), max_size=9),
    seed=st.none() | st.integers(0, 99),
)
def test_forced_arguments_meet_any_schema(
    tools: ToolFormat, schemas: list[dict[str, Any]], sizes: list[int], seed: int | None
) -> None:
    """Greedy and drawn texts, whole and in pieces."""
    named = [ToolSchema(i, "fg"[i], schema) for i, schema in enumerate(schemas)]
    drawn: dict[str, Any] = {} if seed is None else {"temperature": 2.0, "seed": seed}
    text = text_of(model_of(tools), ToolsDefinition(tools, named, is_forced=True, is_parallel=False), **drawn)
    parsed = parse(TextFormat(tools), [text])
    assert parsed.content == ""
    ((name, arguments),) = parsed.calls
    jsonschema.validate(json.loads(arguments), schemas["fg".index(name)])
    pieces = [text[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(len(sizes))] + [text[sum(sizes) :]]
    assert parse(TextFormat(tools), pieces) == parsed


@pytest.mark.parametrize("is_forced", [True, False])
@pytest.mark.parametrize("mark", ["</tool_call>", "<tool_call>"])
def test_arguments_may_hold_text_of_marks(mark: str, is_forced: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"const": mark}}, "required": ["a"], "additionalProperties": False}
    definition = ToolsDefinition("hermes", (ToolSchema(0, "f", schema),), is_forced, is_parallel=False)
    begun = "" if is_forced else BEGINS["hermes"]
    text = text_of(model_of("hermes"), definition, begun, logit_bias={END_ID: 30.0})
    ((name, arguments),) = parse(TextFormat("hermes"), [text]).calls
    assert (name, json.loads(arguments)) == ("f", {"a": mark})


@pytest.mark.parametrize("tools", FORMATS)
def test_unknown_format_is_no_constraint(tools: ToolFormat) -> None:
    schema = {**ONE_OF_TWO, "properties": {"a": {"enum": [1, 22], "format": "password"}}, "format": "form"}
    definition = ToolsDefinition(tools, [ToolSchema(0, "f", schema)], is_forced=True, is_parallel=False)
    parsed = parse(TextFormat(tools), text_of(model_of(tools), definition), "f")
    assert [json.loads(given) for _, given in parsed.calls] in ([{"a": 1}], [{"a": 22}])


@pytest.mark.parametrize("tools", FORMATS)
def test_several_forced_calls_follow_each_other(tools: ToolFormat) -> None:
    several = ToolsDefinition(tools, TOOLS, is_forced=True)
    text = text_of(model_of(tools), several, most=600, temperature=2.0, seed=1)
    *calls, _ = parse(TextFormat(tools), [text]).calls
    assert len(calls) > 1
    assert {(name, json.loads(arguments)["a"]) for name, arguments in calls} <= {("f", 1), ("f", 22)}


@pytest.mark.parametrize("tools", FORMATS)
def test_begun_call_is_held_to_schema(tools: ToolFormat) -> None:
    definition = ToolsDefinition(tools, TOOLS, is_forced=False, is_parallel=False)
    end = {END_ID: 30.0}  # free text ends soon
    parsed = parse(TextFormat(tools), [text_of(model_of(tools), definition, BEGINS[tools], logit_bias=end)])
    ((name, arguments),) = parsed.calls
    assert (name, json.loads(arguments)["a"] in (1, 22)) == ("f", True)


@pytest.mark.parametrize("tools", FORMATS)
def test_text_without_call_is_free(tools: ToolFormat) -> None:
    definition = ToolsDefinition(tools, TOOLS, is_forced=False)
    for begun in ("Yes, [h(1)] and more. ", '{"name": "John"} '):
        text = text_of(model_of(tools), definition, begun, logit_bias={END_ID: 30.0})
        assert parse(TextFormat(tools), [text]).calls == []
        assert text.startswith(begun)


def test_thinking_precedes_forced_call() -> None:
    definition = ToolsDefinition("hermes", TOOLS, is_forced=True, thinks=True)
    text = text_of(model_of("hermes"), definition, "<think>I call it.</think>\n")
    parsed = parse(TextFormat("hermes", thinks=True), [text])
    assert (parsed.reasoning, parsed.content, len(parsed.calls) > 0) == ("I call it.", "", True)


@pytest.mark.parametrize("begun", ["<think>I say it.</think>\n", ""])
@pytest.mark.parametrize(
    ("kind", "definition", "content"),
    [("json_schema", '{"enum":["yes"]}', '"yes"'), ("regex", "a/b[0-9]", None), ("choice", '["</no>"]', "</no>")],
)
def test_thinking_precedes_constrained_text(kind: Any, definition: str, content: str | None, begun: str) -> None:
    model = model_of("hermes")
    matcher = model.constrain(Constraint(kind, definition, thinks=True))
    ids = list(model.tokenizer.ids_of(f"{begun}{content or 'a/b7'}", False))
    assert matcher.num_allowed(ids) == len(ids)
    wrong = list(model.tokenizer.ids_of(f"{begun}no", False))
    assert matcher.num_allowed(wrong) < len(wrong)
    # The prompt has begun the thinking, which then has to end first.
    opened = model.constrain(Constraint(kind, definition, after_opening=True, thinks=True))
    thought = list(model.tokenizer.ids_of(f"So.</think>{content or 'a/b7'}", False))
    assert opened.num_allowed(thought) == len(thought)
    opened.fill_mask(mask := np.zeros(-(-VOCABULARY_SIZE // 32), np.int32))
    assert not mask[END_ID // 32] >> END_ID % 32 & 1


def test_content_beside_calls_meets_schema() -> None:
    definition = ToolsDefinition("hermes", TOOLS, is_forced=False, content={"enum": ["yes"]})
    assert parse(TextFormat("hermes"), [text_of(model_of("hermes"), definition, '"')]) == Parsed('"yes"')


UNSUPPORTED = [{"type": "object", "not": {}}, {"type": "object", "properties": {"a": {"type": "frob"}}}]


@pytest.mark.parametrize("schema", UNSUPPORTED)
@pytest.mark.parametrize("tools", FORMATS)
def test_schema_that_cannot_be_held_is_named(tools: ToolFormat, schema: dict[str, Any]) -> None:
    definition = ToolsDefinition(tools, [*TOOLS, ToolSchema(3, "g", schema)], is_forced=True)
    with pytest.raises(InvalidInput, match=r"^tools\[3\]: expected .*, got "):
        model_of(tools).constrain(Constraint("tools", definition.to_json()))


def test_prompt_that_opens_thinking_is_recognized(tmp_path: Path) -> None:
    model = load_generating(save_tool_model(tmp_path, "hermes", ALWAYS_THINKING), blocks=16)
    try:
        own = model.spec.generation
        ids = model.tokenizer.encode(Conversation((Message("user", "a"),)))
        assert own.text_format == TextFormat("hermes", thinks=True)
        assert ends_with_opening(model.tokenizer, ids, own.text_format)
        assert not ends_with_opening(model.tokenizer, ids[:-3], own.text_format)
        assert not ends_with_opening(model.tokenizer, ids, TextFormat("hermes"))
        opened = Constraint("tools", ToolsDefinition("hermes", TOOLS, True, thinks=True).to_json(), after_opening=True)
        matcher = model.constrain(opened)
        for token_id in model.tokenizer.ids_of('So.</think>\n<tool_call>\n{"name": "f"', False):
            matcher.accept(token_id)
        matcher.fill_mask(np.zeros(-(-VOCABULARY_SIZE // 32), np.int32))  # raises if one was not allowed
    finally:
        model.close()
