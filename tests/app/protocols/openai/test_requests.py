"""The request bodies: OpenAPI's schema accepts exactly what the decoder accepts."""

import json
from functools import cache
from typing import Any, cast

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.protocols.openai.codec import OpenAiCodec
from app.protocols.openai.routes import ROUTES
from app.protocols.shared.codec import Target
from app.protocols.shared.fields.policy import FieldPolicy, Ignored
from frameworks.core.errors import FieldError
from frameworks.generation.tools.formats import TextFormat
from frameworks.generation.types import GenerationSpec
from frameworks.types import ModelSpec, TextSpec
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.json_schemas import accepts, schema_of, values_around
from tests.app.protocols.openai.decoding import SPECS

# Those of forms are tested over a socket: tests/e2e/test_transcriptions.py.
CODECS = {route.path: cast(OpenAiCodec, route.codec) for route in ROUTES if not route.description.is_form}
MESSAGES = [{"role": "user", "content": "a"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
MAX = 2**31 - 1
# Required fields, and for a field that needs others in the body those others.
BASES: dict[str, dict[str, dict[str, Any]]] = {
    "/v1/completions": {
        "": {"prompt": "a"},
        "min_tokens": {"prompt": "a", "max_tokens": MAX},
        "stream_options": {"prompt": "a", "stream": True},
    },
    "/v1/chat/completions": {
        "": {"messages": MESSAGES},
        "stream_options": {"messages": MESSAGES, "stream": True},
        "top_logprobs": {"messages": MESSAGES, "logprobs": True},
        "tool_choice": {"messages": MESSAGES, "tools": TOOLS},
        "continue_final_message": {"messages": [*MESSAGES, {"role": "assistant", "content": "b"}]},
    },
    "/v1/responses": {
        "": {"input": "a"},
        "stream_options": {"input": "a", "stream": True},
        "top_logprobs": {"input": "a", "include": ["message.output_text.logprobs"]},
        "tool_choice": {"input": "a", "tools": [{"type": "function", "name": "f"}]},
    },
    "/v1/responses/input_tokens": {
        "": {"input": "a"},
        "tool_choice": {"input": "a", "tools": [{"type": "function", "name": "f"}]},
    },
    "/v1/embeddings": {"": {"input": "a"}},
    "/v1/rerank": {"": {"query": "q", "documents": ["a"]}},
    "/v1/score": {
        "": {"text_1": "a", "text_2": ["b"]},
        "queries": {"documents": ["b"]},
        "documents": {"queries": "a"},
        "items": {"queries": "a"},
        "data_1": {"data_2": ["b"]},
        "data_2": {"data_1": "a"},
    },
    "/v1/classify": {"": {"input": "a"}},
    "/pooling": {"": {"input": "a"}},
    "/v1/tokenize": {"": {"prompt": "a"}, "messages": {}, "tools": {"messages": MESSAGES}},
    "/v1/detokenize": {"": {"tokens": [1]}},
    "/v1/audio/speech": {"": {"input": "a"}},
}
# vLLM's names of the routes.
BASES |= {path.removeprefix("/v1"): bases for path, bases in BASES.items()}
OTHER_SIDES = {"text_1": "text_2", "queries": "documents", "data_1": "data_2"}
FIELDS = [
    (path, field)
    for path, codec in CODECS.items()
    for field in codec.body.model_fields
    if field != "model"
    and (path, field) != ("/pooling", "task")
    # Only models that read images take messages; see test_image_messages.py.
    and (field != "messages" or "input" not in codec.body.model_fields)
]


def spec_for(codec: OpenAiCodec) -> ModelSpec:
    """Return the spec of a model without limits below those of the schemas."""
    task = codec.tasks[0]
    if task == "text-to-audio":
        return SPECS["voice"]
    text = TextSpec(1, embedding_size=8, shorter_sizes=cast(Any, range(1, MAX + 1)))
    hermes = TextFormat("hermes", thinks=True)
    writer = GenerationSpec(
        MAX, MAX + 1, has_chat_template=True, text_format=hermes, has_reasoning_effort=True, can_infill=True
    )
    generation = writer if task == "generate" else None
    return ModelSpec("pytorch", task, (), (), "cpu", "float32", 0, text, generation=generation)


ENDINGS = ("add_generation_prompt", "continue_final_message")
OF_CONVERSATIONS = ("/v1/embeddings", "/embeddings", "/pooling")


@cache
def values_of(path: str, field: str) -> st.SearchStrategy[Any]:
    return values_around(schema_of(CODECS[path].body)["properties"][field])


@pytest.mark.parametrize(("path", "field"), FIELDS)
@settings(max_examples=12)
@given(data=st.data())
def test_schema_and_decoder_accept_same_values(path: str, field: str, data: st.DataObject) -> None:
    codec = CODECS[path]
    schema = schema_of(codec.body)["properties"][field]
    value = data.draw(values_of(path, field))
    # Only models that read images take it; see test_image_messages.py.
    assume((field, value) != ("modality", "image"))
    # Only models that embed conversations, or images, take these; see test_seeing_embeddings.py of tests/e2e.
    assume(not value or field not in ENDINGS or path not in OF_CONVERSATIONS)
    assume(field != "documents" or '"image"' not in json.dumps(value))
    # Only models with sides take it; see test_sides.py of tests/e2e.
    assume(field != "input_type" or value is None or not accepts(schema, value))
    base = BASES[path].get(field if value is not None else "", BASES[path][""])
    body = {"model": "any", **base, field: value}
    if path.endswith("/score") and field in OTHER_SIDES and isinstance(value, list):
        body[OTHER_SIDES[field]] = ["b"] * len(value)
    if field == "tool_choice" and isinstance(value, dict) and accepts(schema, value):
        body["tools"] = [{"type": "function", **value}]  # the function that is chosen
    if field == "messages" and value and accepts(schema, value):
        # No schema states what base64 is.
        body["messages"] = [_with_files(message) for message in value]
    if field == "tools" and accepts(schema, value):
        # No schema states that names differ.
        value = [_renamed(tool, f"f{index}") for index, tool in enumerate(value or ())]
        body["tools"] = value
    refusal = None
    try:
        decode_body(codec, json.dumps(body).encode(), Target(), lambda *_: spec_for(codec))
    except FieldError as error:
        refusal = error
    # Null leaves a field out, which no schema can state of a field that a rule requires.
    if accepts(schema, value) and (value is not None or field not in base):
        assert refusal is None, refusal
    else:
        assert refusal is not None
        assert refusal.field.startswith(field)


def _with_files(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with a file in each part that is an image or a video."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return message | {"content": [_with_file(part) for part in content]}


def _with_file(part: dict[str, Any]) -> dict[str, Any]:
    return part | {name: part[name] | {"url": "YQ"} for name in ("image_url", "video_url") if name in part}


def _renamed(tool: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a tool with another name, in the form of its route."""
    return tool | ({"function": tool["function"] | {"name": name}} if "function" in tool else {"name": name})


@pytest.mark.parametrize("codec", CODECS.values())
def test_refused_fields_are_not_described(codec: OpenAiCodec) -> None:
    assert not codec.body.model_fields.keys() & codec.policy.refusals.keys()
    assert codec.fields == codec.body.model_fields.keys() | codec.policy.refusals.keys()


@pytest.mark.parametrize("codec", CODECS.values())
def test_refused_field_is_removed_or_refused(codec: OpenAiCodec) -> None:
    policy: FieldPolicy = codec.policy
    for name, refusal in policy.refusals.items():
        for value in (None, *refusal.neutral):
            fields = {"model": "any", name: value}
            assert policy.apply(fields) == ()
            assert fields == {"model": "any"}
        if isinstance(refusal, Ignored):
            assert policy.apply({name: {"a": 1}}) == (name,)
            continue
        with pytest.raises(FieldError, match=f"^{name}: expected .*, got an object; "):
            policy.apply({name: {"a": 1}})
