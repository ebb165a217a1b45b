"""Convert answers to the requested output tensors."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.protocols.open_inference.infer_response import output_tensors
from app.protocols.open_inference.infer_types import InferRequest, OutputTensor, RequestedOutput
from frameworks.core.errors import InvalidInput
from frameworks.types import Array, ClassifyAnswer, EmbedAnswer, ModelSpec, TensorBatch, TextRequest
from tests.app.protocols.native.specs import SPECS

MATRIX = SPECS["matrix"]
BATCHES = replace(MATRIX, batched_inputs=frozenset({"x"}))


def outputs_of(spec: ModelSpec, request: Any, answer: Any, *outputs: RequestedOutput) -> list[OutputTensor]:
    return output_tensors(InferRequest(request, spec, outputs, "", 5, None), answer)


def classes(value: Array, count: int, spec: ModelSpec = BATCHES) -> Any:
    (tensor,) = outputs_of(spec, TensorBatch({}), {"y": value}, RequestedOutput("y", count))
    assert (tensor.name, tensor.datatype) == ("y", "BYTES")
    return tensor.value.tolist()


def test_output_tensors_keep_requested_order() -> None:
    y, z = np.ones((2, 3), np.float32), np.array([1, 2])
    first, second = outputs_of(
        MATRIX, TensorBatch({}), {"y": y, "z": z}, RequestedOutput("z", 0, True), RequestedOutput("y")
    )
    assert first[:2] == ("z", "INT64")
    assert first.value is z
    assert first.binary is True
    assert second[:2] == ("y", "FP32")
    assert second.value is y
    assert second.binary is None


def test_output_tensors_refuse_other_values() -> None:
    with pytest.raises(
        InvalidInput,
        match=r"^outputs\.y: the model returned another type than a tensor; send the request to ",
    ):
        outputs_of(MATRIX, TensorBatch({}), {"y": None}, RequestedOutput("y"))


def test_output_tensors_of_embeddings() -> None:
    vectors = np.ones((2, 4), np.float32)
    (tensor,) = outputs_of(
        SPECS["embed"], TextRequest(["a", "b"]), EmbedAnswer(vectors, 5), RequestedOutput("embeddings", 0, True)
    )
    assert (tensor.name, tensor.datatype, tensor.binary) == ("embeddings", "FP32", True)
    assert tensor.value is vectors


def test_output_tensors_of_scores_follow_labels() -> None:
    answer = ClassifyAnswer([[("b", 0.75), ("a", 0.25)], [("a", 0.5), ("b", 0.5)]])
    request = TextRequest(["x", "y"])
    (tensor,) = outputs_of(SPECS["classify"], request, answer, RequestedOutput("scores"))
    assert tensor.datatype == "FP32"
    assert tensor.value.dtype == np.float32
    assert tensor.value.tolist() == [[0.25, 0.75], [0.5, 0.5]]
    (none,) = outputs_of(SPECS["classify"], TextRequest([]), ClassifyAnswer([]), RequestedOutput("scores"))
    assert none.value.shape == (0, 2)
    (best,) = outputs_of(SPECS["classify"], request, answer, RequestedOutput("scores", 1))
    assert best.value.tolist() == [["0.750000:1:b"], ["0.500000:0:a"]]


def test_classification_returns_values_with_index() -> None:
    numbers = np.array([[1, 5, 10, 4], [3, 3, -np.inf, 7]], np.float32)
    assert classes(numbers, 2) == [["10.000000:2", "5.000000:1"], ["7.000000:3", "3.000000:0"]]
    assert classes(numbers, 1, MATRIX) == ["10.000000:2"]
    assert classes(numbers.reshape(2, 2, 2), 9)[0] == ["10.000000:2", "5.000000:1", "4.000000:3", "1.000000:0"]
    assert classes(numbers[0], 3, MATRIX) == ["10.000000:2", "5.000000:1", "4.000000:3"]
    assert classes(numbers[0, :3], 3) == [["1.000000:0"], ["5.000000:0"], ["10.000000:0"]]


def test_classification_orders_every_dtype() -> None:
    assert classes(np.array([[np.nan, 1, np.nan, 2]], np.float64), 4) == [
        ["2.000000:3", "1.000000:1", "nan:0", "nan:2"]
    ]
    assert classes(np.array([[0, 2**64 - 1, 3]], np.uint64), 3) == [["18446744073709551615:1", "3:2", "0:0"]]
    assert classes(np.array([[-128, 127]], np.int8), 2) == [["127:1", "-128:0"]]
    assert classes(np.array([[False, True]]), 2) == [["1:1", "0:0"]]
    assert classes(np.array([[0.5, 2]], np.float16), 1) == [["2.000000:1"]]
    assert classes(np.empty((3, 0), np.float32), 2) == [[], [], []]
    assert classes(np.empty((0, 3), np.float32), 2) == []
    assert classes(np.array(4, np.int32), 2, MATRIX) == ["4:0"]
