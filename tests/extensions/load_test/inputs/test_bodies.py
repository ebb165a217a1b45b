"""Request bodies made from descriptions, and read from files."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.protocols.open_inference.datatypes import DTYPES, decode_tensor
from extensions.load_test.inputs import bodies as inputs
from extensions.load_test.inputs.bodies import RequestContent, bodies_of_file, made_bodies
from extensions.load_test.inputs.open_inference import made_request, needs_binary
from extensions.load_test.inputs.tensors import CannotMake, Made
from frameworks.types import NUMPY_DTYPES


def made(protocol: str, description: dict[str, Any], options: Made | None = None) -> list[Any]:
    return [json.loads(body.content) for body in made_bodies(protocol, "m", description, options or Made())]


def tensors(*inputs: tuple[str, str, list[int] | None]) -> dict[str, Any]:
    return {
        "task": "tensor",
        "inputs": [{"name": name, "dtype": dtype, "datatype": dtype, "shape": shape} for name, dtype, shape in inputs],
    }


def test_free_dimensions_become_rows_and_length() -> None:
    description = tensors(("ids", "int64", [-1, -1]), ("image", "float32", [-1, 3, 2]), ("on", "bool", []))
    inputs = made("native", description, Made(rows=4, length=5))[0]["inputs"]
    assert {name: value["shape"] for name, value in inputs.items()} == {"ids": [4, 5], "image": [4, 3, 2], "on": []}
    assert [len(value["data"]) for value in inputs.values()] == [20, 24, 1]
    assert set(inputs["ids"]["data"]) == {0, 1}
    assert all(isinstance(value, float) for value in inputs["image"]["data"])
    assert isinstance(inputs["on"]["data"][0], bool)


def test_v2_body_has_datatypes() -> None:
    description = tensors(("x", "FP32", [-1, 2]), ("t", "BYTES", [-1]))
    inputs = made("v2", description, Made(rows=3))[0]["inputs"]
    assert [(each["name"], each["datatype"], each["shape"]) for each in inputs] == [
        ("x", "FP32", [3, 2]),
        ("t", "BYTES", [3]),
    ]
    assert all(isinstance(text, str) for text in inputs[1]["data"])


@pytest.mark.parametrize("datatype", sorted(DTYPES))
def test_binary_tensor_has_values_of_json(datatype: str) -> None:
    description = tensors(("x", datatype, [-1, 2]), ("last", "INT8", [1]))
    body = made_bodies("v2", "m", description, Made(rows=3, distinct=1), encoding="binary")[0]
    headers = dict(body.headers)
    assert headers["content-type"] == "application/octet-stream"
    split = int(headers["inference-header-content-length"])
    head = json.loads(body.content[:split])
    first, last = head["inputs"]
    size = first["parameters"]["binary_data_size"]
    assert size + last["parameters"]["binary_data_size"] == len(body.content) - split
    assert (first["shape"], head["parameters"], "data" in first) == ([3, 2], {"binary_data_output": True}, False)
    # With the decoder of the server. The same seed makes the same values.
    sent = decode_tensor(body.content[split : split + size], datatype, (3, 2), "x")
    made_values = made_request(description, Made(rows=3), random.Random(0))["inputs"][0]["data"]
    expected = np.array(made_values, NUMPY_DTYPES[DTYPES[datatype]]).reshape(3, 2)
    if datatype == "BF16":
        np.testing.assert_allclose(sent, expected, rtol=2**-7)
    else:
        np.testing.assert_array_equal(sent, expected)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_halves_without_binary_are_refused(datatype: str) -> None:
    description = {"outputs": [], **tensors(("x", datatype, [1]))}
    assert needs_binary(description)
    assert needs_binary({"outputs": description["inputs"]})
    with pytest.raises(CannotMake, match="--no-binary: expected"):
        made_bodies("v2", "m", description, Made())


def test_prompt_is_only_input_of_generation() -> None:
    description = tensors(("text_input", "BYTES", [1]), ("stream", "BOOL", [1]), ("sampling_parameters", "BYTES", [1]))
    body = made("v2", description, Made(max_tokens=9))[0]
    assert [each["name"] for each in body["inputs"]] == ["text_input"]
    assert body["parameters"] == {"max_tokens": 9}
    ensemble = tensors(("text_input", "BYTES", [-1, 1]), ("max_tokens", "INT32", [-1, 1]))
    prompt, limit = made("v2", ensemble, Made(max_tokens=9))[0]["inputs"]
    assert (prompt["shape"], limit["shape"], limit["data"]) == ([1, 1], [1, 1], [9])


def test_made_bodies_have_bounded_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_MADE_BYTES", 10_000)
    assert 5 < len(made_bodies("native", "m", {"task": "embed"}, Made(rows=10))) < 20


@pytest.mark.parametrize("task", ["embed", "classify"])
def test_texts_have_given_words_and_rows(task: str) -> None:
    bodies = made("native", {"task": task}, Made(rows=2, words=(3, 5)))
    assert all(len(body["text"]) == 2 for body in bodies)
    assert {len(text.split()) for body in bodies for text in body["text"]} == {3, 4, 5}
    assert len({json.dumps(body) for body in bodies}) == 64


@pytest.mark.parametrize(
    ("protocol", "fields"),
    [
        ("native", {"prompt", "max_tokens", "stream"}),
        ("openai-chat", {"model", "messages", "max_tokens", "stream", "stream_options"}),
        ("openai-completions", {"model", "prompt", "max_tokens", "stream", "stream_options"}),
    ],
)
def test_generation_is_streamed_unless_refused(protocol: str, fields: set[str]) -> None:
    streamed = made_bodies(protocol, "m", {"task": "generate"}, Made(max_tokens=9))[0]
    assert streamed.is_streamed
    assert streamed.is_generation
    body = json.loads(streamed.content)
    assert set(body) == fields
    assert body["max_tokens"] == 9
    whole = made_bodies(protocol, "m", {"task": "generate"}, Made(is_streamed=False))[0]
    assert not whole.is_streamed
    assert "stream" not in json.loads(whole.content)


def test_same_seed_makes_same_bodies() -> None:
    assert made("native", {"task": "embed"}) == made("native", {"task": "embed"})
    assert made("native", {"task": "embed"}) != made("native", {"task": "embed"}, Made(seed=1))


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"task": "rerank"},
        {"task": "tensor", "inputs": None},
        {"task": "tensor", "inputs": [5]},
        tensors(("x", "float32", None)),
        tensors(("x", "sequence(float32)", [1])),
        tensors(("x", "float32", [1 << 20, 1 << 20])),
    ],
)
def test_unknown_description_is_refused(description: dict[str, Any]) -> None:
    with pytest.raises(CannotMake, match="--model: expected"):
        made_bodies("native", "m", description, Made())


def test_file_has_one_body_a_line(tmp_path: Path) -> None:
    file = tmp_path / "bodies.jsonl"
    file.write_text('{"prompt": "a", "stream": true}\n\n{"model": "other", "prompt": "b"}\n', encoding="utf-8")
    first, second = bodies_of_file(file, "openai-completions", "m")
    assert json.loads(first.content) == {
        "model": "m", "prompt": "a", "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert (first.is_streamed, second.is_streamed) == (True, False)
    assert json.loads(second.content)["model"] == "other"
    assert bodies_of_file(file, "native", "m")[0] == RequestContent(b'{"prompt":"a","stream":true}', True, True)


def test_bodies_of_file_become_binary(tmp_path: Path) -> None:
    file = tmp_path / "bodies.jsonl"
    tensor = {"name": "x", "shape": [2, 1], "datatype": "INT16", "data": [[1], [-2]]}
    file.write_text(json.dumps({"id": "7", "inputs": [tensor], "parameters": {"binary_data_output": False}}), "utf-8")
    body = bodies_of_file(file, "v2", "m", encoding="binary")[0]
    assert body.content.endswith(b"\x01\x00\xfe\xff")
    head = json.loads(body.content[:-4])
    assert (head["id"], head["parameters"]) == ("7", {"binary_data_output": False})


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({"datatype": "INT8", "shape": [1], "data": [300]}, "data: expected values of INT8"),
        ({"datatype": "INT8", "shape": [3], "data": [1]}, "data: expected 3 values, got 1"),
        ({"datatype": "INT8", "shape": [2], "data": [[1], [1, 2]]}, "data: expected values of INT8"),
        ({"datatype": "INT8", "shape": [1]}, "data: expected a list"),
        ({"datatype": "INT8", "shape": [-1], "data": [1]}, "shape: expected a list of sizes"),
        ({"datatype": "INT8", "shape": [1] * 33, "data": [1]}, "shape: expected a list of sizes"),
        ({"datatype": "INT4", "shape": [1], "data": [1]}, "datatype: expected one of"),
        ({"datatype": "BYTES", "shape": [1], "data": [5]}, "data: expected strings"),
        ({"datatype": "INT8", "shape": [1], "data": [1], "parameters": 5}, "parameters: expected an object"),
        (5, "inputs: expected a list of objects"),
    ],
)
def test_invalid_tensor_of_file_is_refused(tmp_path: Path, tensor: Any, message: str) -> None:
    file = tmp_path / "bodies.jsonl"
    file.write_text(json.dumps({"inputs": [tensor]}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"--input: line 1: .*" + message):
        bodies_of_file(file, "v2", "m", encoding="binary")


@pytest.mark.parametrize(("text", "message"), [("", "empty"), ("{}\n[]", "line 2: .*object"), ("{", "line 1: .*JSON")])
def test_invalid_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bodies.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        bodies_of_file(tmp_path / "bodies.jsonl", "native", "m")


def test_unreadable_or_endless_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_FILE_BYTES", 1000)
    for file, message in (
        (tmp_path, "the folder"),
        (tmp_path / "absent", "which does not exist"),
        (Path("/dev/zero"), "larger"),
    ):
        with pytest.raises(ValueError, match=f"--input: expected a file .*{message}"):
            bodies_of_file(file, "native", "m")
