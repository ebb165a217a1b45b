"""Step 5, ENCODE, of what all doors of the protocol share: an answer as the tensors that its request asked for."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from app.protocols.open_inference.infer_types import InferRequest, OutputTensor
from app.protocols.open_inference.signature import OTHERWISE, signature_of_request, supports_batching
from frameworks.errors import InvalidInput
from frameworks.generation.types import GenerateAnswer
from frameworks.types import Array, ClassifyAnswer, EmbedAnswer, Value


def output_tensors(request: InferRequest, answer: Any) -> list[OutputTensor]:
    """In the order of the request's outputs. Raises InvalidInput where a model gives what cannot be carried."""
    if isinstance(answer, dict):
        return _tensors(request, answer)
    spec = request.spec
    labels: tuple[str, ...] = ()
    match answer:
        case EmbedAnswer():
            datatype, value = "FP32", answer.embeddings
        case ClassifyAnswer():
            assert spec.text is not None
            labels = spec.text.labels
            datatype, value = "FP32", _scores(answer, labels)
        case GenerateAnswer():
            datatype, value = "BYTES", _strings([choice.text for choice in answer.choices])
        case _:
            raise AssertionError(f"{type(answer)} answers no request of this protocol")
    return [
        OutputTensor(name, "BYTES", _classified(value, classes, labels, by_row=True), binary)
        if classes
        else OutputTensor(name, datatype, value, binary)
        for name, classes, binary in request.outputs
    ]


def _tensors(request: InferRequest, answer: Mapping[str, Value]) -> list[OutputTensor]:
    declared = signature_of_request(request).outputs
    tensors = []
    for name, classes, binary in request.outputs:
        value = answer[name]
        if not isinstance(value, np.ndarray):
            raise InvalidInput(f"outputs.{name}", f"is no tensor this time; {OTHERWISE}")
        if classes:
            by_row = value.ndim > 0 and supports_batching(request.spec)
            tensors.append(OutputTensor(name, "BYTES", _classified(value, classes, (), by_row), binary))
        else:
            tensors.append(OutputTensor(name, declared[name].datatype, value, binary))
    return tensors


def _scores(answer: ClassifyAnswer, labels: tuple[str, ...]) -> Array:
    """float32 [texts, labels], in the labels' order."""
    rows = [dict(row) for row in answer.predictions]
    scores = np.array([[row[label] for label in labels] for row in rows], dtype=np.float32)
    return scores.reshape(len(rows), len(labels))


def _classified(value: Array, classes: int, labels: tuple[str, ...], by_row: bool) -> Array:
    """The highest of each row's numbers, or of all of them, as Triton writes them: `value:index`, or
    `value:index:label`. Equal ones in their order, NaN last.
    """
    num_rows = len(value) if by_row else 1
    rows = value.reshape(num_rows, value.size // max(1, num_rows))
    if rows.dtype.kind == "b":
        rows = rows.view(np.uint8)
    # Sorting what is turned round, and turning it back, keeps equal ones in their order.
    highest = rows.shape[1] - 1 - np.argsort(_comparable(rows)[:, ::-1], axis=1, kind="stable")[:, : -classes - 1 : -1]
    written = [_written(row[i], i, labels) for row, best in zip(rows, highest.tolist(), strict=True) for i in best]
    return _strings(written).reshape(highest.shape if by_row else highest.shape[1:])


def _comparable(rows: Array) -> Array:
    return np.where(np.isnan(rows), -np.inf, rows) if rows.dtype.kind == "f" else rows


def _written(value: Any, index: int, labels: tuple[str, ...]) -> str:
    number = f"{value:f}" if value.dtype.kind == "f" else f"{value:d}"
    return f"{number}:{index}:{labels[index]}" if labels else f"{number}:{index}"


def _strings(texts: list[str]) -> Array:
    strings = np.empty(len(texts), dtype=object)
    strings[:] = texts
    return strings
