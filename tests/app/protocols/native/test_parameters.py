"""Options of texts and images in `parameters`: equal to those in fields of their own, and refused by name."""

import json
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from app.protocols.native.files import CODEC
from app.protocols.shared.codec import Target
from app.protocols.shared.json import body as json_body
from frameworks.core.errors import FieldError
from frameworks.images.spec import ImageRequest
from frameworks.types import ModelSpec, TextRequest
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import SPECS

IMAGE = "/9j/IGFu"
FILE = b"\xff\xd8\xff an"


def spec_of(name: str) -> ModelSpec:
    spec = SPECS[name]
    if name == "embed":
        assert spec.text is not None
        return replace(spec, text=replace(spec.text, embedding_size=8, shorter_sizes=(2, 4)))
    return spec


def read(model: str, body: dict[str, Any]) -> Any:
    return decode_body(CODEC, json.dumps(body).encode(), Target(model), lambda *_: spec_of(model)).request


def refusal(model: str, body: dict[str, Any]) -> str:
    with pytest.raises(FieldError) as caught:
        read(model, body)
    return str(caught.value)


@pytest.fixture(params=["simdjson", "plain"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(json_body, "simdjson", None)


@pytest.mark.parametrize(
    ("model", "field", "options"),
    [
        ("embed", "text", {"normalize": False, "truncate": False, "dimensions": 4}),
        ("embed", "text", {"dimensions": 8}),
        ("classify", "text", {"top_k": 1, "truncate": True, "function_to_apply": "none"}),
        ("classify", "text", {"function_to_apply": "softmax"}),
        ("photos", "image", {"top_k": 2, "function_to_apply": "none"}),
        ("photo-vectors", "image", {"normalize": True, "dimensions": 8}),
        ("classify", "text", {}),
    ],
)
def test_parameters_equal_own_fields(model: str, field: str, options: dict[str, Any]) -> None:
    given = {field: IMAGE if field == "image" else ["a", "b"]}
    expected = read(model, {**given, **options})
    assert read(model, {**given, "parameters": options}) == expected
    assert read(model, {**given, "parameters": {**options, "normalize": options.get("normalize")}}) == expected
    for name, value in options.items():
        rest = {key: other for key, other in options.items() if key != name}
        assert read(model, {**given, name: value, "parameters": rest}) == expected


def test_null_parameters_are_none() -> None:
    assert read("classify", {"text": "a", "parameters": None}) == read("classify", {"text": "a"})


def test_function_and_dimensions_reach_model() -> None:
    texts = read("classify", {"text": "a", "parameters": {"function_to_apply": "none"}})
    assert isinstance(texts, TextRequest)
    assert texts.raw_scores
    vectors = read("embed", {"text": "a", "parameters": {"dimensions": 2}})
    assert isinstance(vectors, TextRequest)
    assert vectors.dimensions == 2


@pytest.mark.parametrize(
    ("model", "body", "message"),
    [
        ("classify", {"text": "a", "parameters": {"top_k": 0}}, "parameters.top_k: expected an integer of 1 or more"),
        ("classify", {"text": "a", "parameters": {"top_k": True}}, "parameters.top_k: expected an integer"),
        (
            "classify",
            {"text": "a", "parameters": {"topk": 1}},
            'parameters.topk: unknown field; did you mean "parameters.top_k"',
        ),
        ("classify", {"text": "a", "parameters": []}, "parameters: expected an object, got"),
        ("classify", {"text": "a", "parameters": "top_k"}, "parameters: expected an object, got"),
        ("classify", {"text": "a", "top_k": 1, "parameters": {"top_k": 1}}, "parameters.top_k: expected one value"),
        (
            "classify",
            {"text": "a", "parameters": {"normalize": True}},
            "parameters.normalize: expected a model of task",
        ),
        (
            "classify",
            {"text": "a", "parameters": {"function_to_apply": "sigmoid"}},
            "parameters.function_to_apply: exp",
        ),
        ("classify", {"text": "a", "parameters": {"function_to_apply": ["none"]}}, "parameters.function_to_apply: exp"),
        ("classify", {"text": "a", "function_to_apply": "relu"}, 'function_to_apply: expected "none" or "softmax"'),
        (
            "embed",
            {"text": "a", "parameters": {"function_to_apply": "none"}},
            "parameters.function_to_apply: expected a",
        ),
        ("embed", {"text": "a", "parameters": {"dimensions": 3}}, "parameters.dimensions: expected one of 2, 4, 8"),
        ("embed", {"text": "a", "dimensions": 0}, "dimensions: expected an integer of 1 or more"),
        ("embed", {"text": "a", "parameters": {"truncate": "yes"}}, "parameters.truncate: expected a boolean"),
        ("embed", {"text": 3, "parameters": {"truncate": True}}, "text: expected a string"),
        ("embed", {"text": "a", "parameters": {"text": "b"}}, "parameters.text: unknown field"),
        ("embed", {"text": "a", "parameters": {"priority": 1}}, "parameters.priority: unknown field"),
        ("photos", {"image": IMAGE, "parameters": {"outputs": ["y"]}}, "parameters.outputs: unknown field"),
        ("photo-vectors", {"image": IMAGE, "parameters": {"dimensions": 4}}, "parameters.dimensions: expected 8"),
        ("photo-tensors", {"image": IMAGE, "parameters": {"top_k": 4}}, "parameters.top_k: expected a model of task"),
        ("matrix", {"input_data": [1, 2, 3], "parameters": {}}, "parameters: expected an option of input_data"),
        ("generate", {"prompt": "a", "parameters": {"top_k": 1}}, "parameters: expected an option of prompt"),
        ("embed", {"parameters": {"top_k": 1}}, "input_data: expected exactly one of"),
        ("embed", {"text": "a", "image": IMAGE, "parameters": {}}, "image: expected exactly one of"),
    ],
)
def test_wrong_parameters_are_refused_by_name(model: str, body: dict[str, Any], message: str) -> None:
    assert refusal(model, body).startswith(message)


def test_parameters_of_file_are_json_text() -> None:
    def of_query(text: str) -> Any:
        codec = CODEC.for_head([(b"content-type", b"image/jpeg")], text.encode())
        return decode_body(codec, FILE, Target("photos"), lambda *_: spec_of("photos")).request

    given = quote('{"top_k": 2, "function_to_apply": "none", "normalize": null}')
    expected = ImageRequest([FILE], top_k=2, raw_scores=True)
    assert of_query(f"parameters={given}") == of_query("top_k=2&function_to_apply=none") == expected
    assert of_query("parameters=null") == of_query("parameters={}") == ImageRequest([FILE])
    for text, message in (
        ("parameters={", "parameters: expected a JSON object as text"),
        ("parameters=[1]", "parameters: expected a JSON object as text"),
        ('parameters={"top_k": "2"}', "parameters.top_k: expected an integer"),
        ('parameters={"topk": 2}', "parameters.topk: unknown field"),
        ('parameters={"top_k": 2}&top_k=2', "parameters.top_k: expected one value"),
        ('parameters={"dimensions": 2}', "parameters.dimensions: expected a model of task embed"),
        ("dimensions=x", "dimensions: expected an integer of 1 or more"),
    ):
        with pytest.raises(FieldError) as caught:
            of_query(text)
        assert str(caught.value).startswith(message)
