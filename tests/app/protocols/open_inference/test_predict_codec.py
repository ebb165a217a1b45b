"""Predict of KServe's first protocol: rows of instances become tensors, and outputs become rows."""

import base64
import json
import re
from typing import Any

import numpy as np
import orjson
import pytest

from app.protocols.open_inference.infer_types import InferRequest
from app.protocols.open_inference.predict_codec import ROUTES, PredictCodec, PredictResponse
from app.protocols.shared.codec import AnswerContext, Target
from app.protocols.shared.errors import to_http
from frameworks.core.errors import InvalidInput, RoundhouseError
from frameworks.images.spec import ImageRequest
from frameworks.types import ClassifyAnswer, EmbedAnswer, TensorBatch, TensorType, TextRequest, ValueSpec
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import SPECS, model

CODEC = PredictCodec()
CONTEXT = AnswerContext("m", "1", "abc-1", 1.5, 0)
PAIR = model(ValueSpec("a", TensorType("float32", (-1, 2))), ValueSpec("b", TensorType("int64", (-1,))))
TEXTS = model(task="embed", framework="pytorch")
LABELS = model(task="classify", framework="pytorch")


def read(spec: Any, instances: object, **more: object) -> InferRequest:
    spec = SPECS[spec] if isinstance(spec, str) else spec
    body = json.dumps({"instances": instances, **more}).encode()
    decoded: InferRequest = decode_body(CODEC, body, Target("m"), lambda *_: spec)
    return decoded


def tensors(request: InferRequest) -> dict[str, Any]:
    assert isinstance(request.request, TensorBatch)
    return {name: np.asarray(value).tolist() for name, value in request.request.inputs.items()}


def written(request: InferRequest, answer: object) -> Any:
    body = orjson.loads(CODEC.encode(request, answer, CONTEXT))
    PredictResponse.model_validate(body)
    return body["predictions"]


@pytest.mark.parametrize("instances", [[[1, 2, 3], [4, 5, 6]], [{"x": [1, 2, 3]}, {"x": [4, 5, 6]}]])
def test_rows_become_tensor_of_only_input(instances: object) -> None:
    assert tensors(read("matrix", instances)) == {"x": [[1, 2, 3], [4, 5, 6]]}


def test_objects_become_tensor_of_each_input() -> None:
    request = read(PAIR, [{"a": [1, 2], "b": 3}, {"b": 6, "a": [4, 5]}], parameters={"priority": 2, "timeout": 5000})
    assert tensors(request) == {"a": [[1, 2], [4, 5]], "b": [3, 6]}
    assert (request.priority, request.timeout_ms) == (2, 5)


@pytest.mark.parametrize("instances", [["a", "é"], [{"text": "a"}, {"b64": base64.b64encode("é".encode()).decode()}]])
def test_texts_are_read(instances: object) -> None:
    request = read(TEXTS, instances, signature_name="serving_default")
    assert request.request == TextRequest(["a", "é"])
    vectors = np.array([[1, 2], [3, 4]], np.float32)
    assert written(request, EmbedAnswer(vectors, 4)) == vectors.tolist()


def test_images_are_read() -> None:
    request = read("photos", [{"b64": base64.b64encode(b"file").decode()}, {"image": {"b64": "ZmlsZQ=="}}])
    assert isinstance(request.request, ImageRequest)
    assert request.request.images == [b"file", b"file"]


def test_scores_are_in_order_of_labels() -> None:
    answer = ClassifyAnswer([[("b", 0.75), ("a", 0.25)]])
    assert written(read(LABELS, ["a"]), answer) == [[0.25, 0.75]]


def test_several_outputs_are_objects() -> None:
    answer = {"y": np.array([[1], [2]], np.float32), "z": np.array([3, 4])}
    assert written(read("matrix", [[1, 2, 3], [4, 5, 6]]), answer) == [{"y": [1], "z": 3}, {"y": [2], "z": 4}]


@pytest.mark.parametrize("shape", [(), (1, 2), (3,)])
def test_output_without_rows_is_refused(shape: tuple[int, ...]) -> None:
    answer = {"y": np.zeros(shape, np.float32), "z": np.array([3, 4])}
    with pytest.raises(
        InvalidInput, match=r"instances: expected .* each of 2 instances, got y of shape .*/v2/models/m"
    ):
        written(read("matrix", [[1, 2, 3], [4, 5, 6]]), answer)


@pytest.mark.parametrize(
    ("spec", "instances", "words"),
    [
        ("matrix", None, "instances: expected a list .* got null"),
        ("matrix", [[1, 2]], "instances: expected shape"),
        ("matrix", [{"x": [1, 2, 3]}, {"x": [1, 2]}], r"instances\[1\].x: expected shape \[3\]"),
        ("matrix", [{"x": [1, 2, 3]}, [1]], r"instances\[1\]: expected an object"),
        ("matrix", [{"w": [1, 2, 3]}], r"instances\[0\].w"),
        (PAIR, [{"a": [1, 2]}], "instances: expected a tensor, got nothing"),
        (PAIR, [{"a": [1, 2], "b": 1}, {"a": [1, 2]}], r"instances\[1\]: expected a, b, as in the first one, got a"),
        (PAIR, [{"b64": "YQ=="}], r"instances\[0\]: expected an object of name"),
        (TEXTS, [["a", "b"]], "instances: expected one text or image for each prediction"),
        (TEXTS, [{"b64": "?"}], r"instances\[0\].text.b64: expected base64"),
        ("generate", ["a"], "instances: expected a model that generates no text"),
        ("matrix", [{}] * 100_001, "instances: expected at most 100000 objects, got 100001"),
    ],
)
def test_other_instances_are_refused(spec: Any, instances: object, words: str) -> None:
    with pytest.raises(RoundhouseError) as refused:
        read(spec, instances)
    error = json.loads(CODEC.error_body(to_http(refused.value), "abc-1"))["error"]
    assert re.search(words, error), error


def test_field_of_text_is_named_as_instance() -> None:
    body = CODEC.error_body(to_http(InvalidInput("text[3]", "is long")), "abc-1")
    assert json.loads(body) == {"error": "instances[3]: is long"}


def test_route_leaves_get_to_admin() -> None:
    assert [(route.path, route.others) for route in ROUTES] == [
        ("/v1/models/{name}:predict", frozenset({"GET", "HEAD"}))
    ]
