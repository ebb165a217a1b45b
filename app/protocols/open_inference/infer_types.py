"""The vocabulary of the Open Inference Protocol, whatever it travels by: JSON, binary tensors, or gRPC messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from frameworks.generation.types import GenerateRequest
from frameworks.types import Array, ModelSpec, TensorBatch, TextRequest

Parameter = bool | int | float | str


class InputTensor(NamedTuple):
    """An input as it came. `datatype`: the protocol's name (`FP32`). `value`: of the datatype's numpy type, as
    frameworks.types has it, in its shape; it may be a read-only view on the body.
    """

    name: str
    datatype: str
    value: Array
    parameters: Mapping[str, Parameter] = {}


class RequestedOutput(NamedTuple):
    """`classes`: of the classification extension, how many of the highest values are told; 0: the tensor itself.
    `binary`: None where the caller did not say, as `binary_data_output` of the request does then.
    """

    name: str
    classes: int = 0
    binary: bool | None = None


@dataclass(slots=True)
class ParsedRequest:
    """What came, before it is held against a model. `outputs` None: all of them, as the request's parameters say."""

    inputs: list[InputTensor]
    outputs: list[RequestedOutput] | None = None
    id: str = ""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


class InferRequest(NamedTuple):
    """As DecodedRequest of app/inference/pipeline.py: a question that suits the model whose `spec` it was read by.

    `outputs`: those that the answer has, in its order. `timeout_ms` None: the caller named no deadline.
    """

    request: TensorBatch | TextRequest | GenerateRequest
    spec: ModelSpec
    outputs: tuple[RequestedOutput, ...]
    id: str
    priority: int
    timeout_ms: float | None
    stream: bool = False


class OutputTensor(NamedTuple):
    """An output. `value`: of the datatype's numpy type as frameworks.types has it, in its shape; for BYTES an object
    array of str.
    """

    name: str
    datatype: str
    value: Array
    binary: bool | None = None
