"""Curl lines for models of each task, read as a shell and a server read them."""

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.server.example_requests import Caller, curl_lines
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.generation.types import GenerationSpec
from frameworks.images.spec import ImageSpec
from frameworks.models.versions.identity import ModelIdentity
from frameworks.models.versions.slot import ModelSlot
from frameworks.scheduling.batch.batcher import BatchLimits
from frameworks.types import (
    MapType,
    ModelSpec,
    SequenceSpec,
    StatePair,
    StateSpec,
    TensorType,
    TextSpec,
    ValueSpec,
)

CALLER = Caller("http://127.0.0.1:8080")
TENSOR = ModelSpec("onnx", "tensor", (), (), "cpu", "float32", 0)


class LoadedSlot(ModelSlot):
    """A model whose spec is given."""

    def __init__(self, name: str, spec: ModelSpec | None, framework: str = "onnx", **entry: Any) -> None:
        settings = OnnxModelEntry(name=name, path=Path("files"), **entry)
        super().__init__(ModelIdentity(framework, settings, BatchLimits(max_rows=8), ageing_s=1.0), Path("files"))
        self._given = spec

    @property
    def spec(self) -> ModelSpec | None:
        return self._given


def tensor_spec(*inputs: ValueSpec, **fields: Any) -> ModelSpec:
    return replace(TENSOR, inputs=inputs, **fields)


def tensor(name: str, dtype: str, *shape: int, required: bool = True) -> ValueSpec:
    return ValueSpec(name, TensorType(dtype, shape), required)


def body_of(line: str) -> Any:
    words = shlex.split(line)
    return json.loads(words[words.index("-d") + 1])


def test_model_with_state_gets_whole_sequence() -> None:
    state = StateSpec((StatePair("h", "hn", "float32", (-1, 2), 0),), 1024, 1.0)
    body = body_of(line_of(tensor_spec(tensor("x", "float32", -1, 3), state=state)))
    assert body == {
        "model_name": "m",
        "input_data": [[0, 0, 0]],
        "sequence": {"id": 1, "start": True, "end": True},
    }
    long = line_of(tensor_spec(tensor("x", "float32", -1, 300), state=state))
    assert "\"sequence\": {'id': 1, 'start': True, 'end': True}" in shlex.split(long)[2]


def line_of(spec: ModelSpec, **entry: Any) -> str:
    [line] = curl_lines([LoadedSlot("m", spec, **entry)], CALLER)
    return line


@pytest.mark.parametrize(
    ("inputs", "given"),
    [
        ([tensor("x", "float32", -1, 3)], {"input_data": [[0, 0, 0]]}),
        ([tensor("x", "string", -1)], {"input_data": ["A roundhouse is where engines wait."]}),
        (
            [tensor("a", "int64", 2), tensor("b", "bool", -1, 1), tensor("c", "int64", 1, required=False)],
            {"inputs": {"a": [0, 0], "b": [[False]]}},
        ),
        ([ValueSpec("x", TensorType("float32", None))], {"input_data": [0]}),
    ],
)
def test_small_tensors_are_written_out(inputs: list[ValueSpec], given: dict[str, Any]) -> None:
    assert body_of(line_of(tensor_spec(*inputs))) == {"model_name": "m"} | given


def test_large_tensor_is_computed_by_line() -> None:
    line = line_of(tensor_spec(tensor("it's", "float32", -1, 3, 224, 224)))
    assert len(line) < 300
    program, _, request = line.partition(" | ")
    assert request.endswith(" -d @-")
    printed = subprocess.run(program, shell=True, capture_output=True, text=True, timeout=60, check=True).stdout
    sent = json.loads(printed)["inputs"]["it's"]
    assert (len(sent["data"]), sent["shape"]) == (3 * 224 * 224, [1, 3, 224, 224])


def test_free_dimensions_are_as_at_warm_up() -> None:
    spec = tensor_spec(tensor("x", "int64", -1, -1), sequence=SequenceSpec(1, {"x": 0}))
    assert body_of(line_of(spec)) == {"model_name": "m", "input_data": [[0] * 4]}
    given = line_of(tensor_spec(tensor("x", "int64", -1, -1)), input_shape=[2, 3])
    assert body_of(given) == {"model_name": "m", "input_data": [[0] * 3] * 2}


@pytest.mark.parametrize(
    ("spec", "path", "fields"),
    [
        (replace(TENSOR, task="embed", text=TextSpec(8)), "/v1/embeddings", {"model", "input"}),
        (
            replace(TENSOR, task="classify", text=TextSpec(8, labels=("LABEL_0",))),
            "/v1/rerank",
            {"model", "query", "documents"},
        ),
        (replace(TENSOR, task="classify", text=TextSpec(8, labels=("a", "b"))), "/infer", {"model_name", "text"}),
        (replace(TENSOR, image=ImageSpec("x", 8, 8)), "/infer", {"model_name", "image"}),
        (
            replace(TENSOR, task="generate", generation=GenerationSpec(8, 8)),
            "/v1/completions",
            {"model", "prompt", "max_tokens"},
        ),
        (
            replace(TENSOR, task="generate", generation=GenerationSpec(8, 8, has_chat_template=True)),
            "/v1/chat/completions",
            {"model", "messages", "max_tokens"},
        ),
    ],
)
def test_task_names_route_and_fields(spec: ModelSpec, path: str, fields: set[str]) -> None:
    line = line_of(spec)
    assert shlex.split(line)[2] == CALLER.url + path
    assert body_of(line).keys() == fields


def test_one_line_for_each_task() -> None:
    embed = replace(TENSOR, task="embed", text=TextSpec(8))
    slots = [
        LoadedSlot("not-loaded", None),
        LoadedSlot("a-map", tensor_spec(ValueSpec("x", MapType("string", TensorType("float32", ()))))),
        LoadedSlot("long", tensor_spec(*(tensor("x" * 100 + str(i), "int64", 1) for i in range(30)))),
        LoadedSlot("first", tensor_spec(tensor("x", "int64", 1))),
        LoadedSlot("second", tensor_spec(tensor("x", "int64", 1))),
        LoadedSlot("texts", embed),
        LoadedSlot("steps", replace(embed, is_composite=True), framework="pipeline"),
    ]
    bodies = [body_of(line) for line in curl_lines(slots, CALLER)]
    assert [body.get("model") or body["model_name"] for body in bodies] == ["first", "texts", "steps"]


def test_options_are_in_each_line() -> None:
    caller = Caller("https://a", ("--cacert 'a b.pem'",))
    [line] = curl_lines([LoadedSlot("m", tensor_spec(tensor("x", "int64", 1)))], caller)
    assert shlex.split(line)[:5] == ["curl", "-s", "--cacert", "a b.pem", "https://a/infer"]
    assert caller.get("/models") == "curl -s --cacert 'a b.pem' https://a/models"
