"""Types of infer requests and responses, for every transport: JSON, binary tensors, gRPC messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.protocols.open_inference.generate_request import ParsedGenerate
from frameworks.generation.types import GenerateRequest
from frameworks.images.spec import ImageRequest
from frameworks.tasks.types import TaskRequest
from frameworks.types import Array, ModelSpec, TensorBatch, TextRequest

Parameter = bool | int | float | str
Parameters = Mapping[str, Parameter]


class InputTensor(NamedTuple):
    """One input as the caller sent it.

    `datatype`: the protocol's name (`FP32`). `value`: of the datatype's numpy type and in its shape; it may be a
    read-only view of the body. BYTES are str; files of images are bytes, or str that holds base64.
    """

    name: str
    datatype: str
    value: Array
    parameters: Mapping[str, Parameter] = {}


class RequestedOutput(NamedTuple):
    """One output that the caller requests.

    `num_classes`: of the classification extension, how many of the highest values to return; 0 for the tensor itself.
    `binary`: whether the response carries it as bytes; None: as the request's `binary_data_output` says.
    """

    name: str
    num_classes: int = 0
    binary: bool | None = None


@dataclass(slots=True)
class ParsedRequest:
    """A request that was parsed and not yet checked against a model. `outputs` None: all outputs of the model."""

    inputs: list[InputTensor]
    outputs: list[RequestedOutput] | None = None
    id: str = ""
    parameters: Parameters = field(default_factory=dict)


class InferRequest(NamedTuple):
    """A request that was checked against the model of `spec`; a DecodedRequest of app/inference/pipeline.py.

    `outputs`: in the order of the response. `timeout_ms` None: the request has no deadline. `generation`: the options
    of a request for text, None for others.
    """

    request: TensorBatch | TextRequest | ImageRequest | TaskRequest | GenerateRequest
    spec: ModelSpec
    outputs: tuple[RequestedOutput, ...]
    id: str
    priority: int
    timeout_ms: float | None
    stream: bool = False
    generation: ParsedGenerate | None = None


class OutputTensor(NamedTuple):
    """One output of a response. `value`: of the datatype's numpy type; for BYTES an object array of str."""

    name: str
    datatype: str
    value: Array
    binary: bool | None = None
