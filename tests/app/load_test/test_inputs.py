"""Request bodies made from descriptions, and read from files."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.load_test.inputs import Body, CannotMake, Made, bodies_of_file, made_bodies


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
    description = tensors(("x", "FP16", [-1, 2]), ("t", "BYTES", [-1]), ("b", "BF16", [1]))
    inputs = made("v2", description, Made(rows=3))[0]["inputs"]
    assert [(each["name"], each["datatype"], each["shape"]) for each in inputs] == [
        ("x", "FP16", [3, 2]),
        ("t", "BYTES", [3]),
        ("b", "FP32", [1]),
    ]
    assert all(isinstance(text, str) for text in inputs[1]["data"])


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
    assert bodies_of_file(file, "native", "m")[0] == Body(b'{"prompt":"a","stream":true}', True, True)


@pytest.mark.parametrize(("text", "message"), [("", "empty"), ("{}\n[]", "line 2: .*object"), ("{", "line 1: .*JSON")])
def test_invalid_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "bodies.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        bodies_of_file(tmp_path / "bodies.jsonl", "native", "m")
