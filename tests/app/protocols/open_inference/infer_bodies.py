"""Bodies of infer requests, decoded or refused."""

import json
from typing import Any

import numpy as np
import pytest

from app.protocols.open_inference.infer_codec import InferCodec
from app.protocols.open_inference.infer_types import InferRequest
from app.protocols.shared.codec import AnswerContext, Target
from frameworks.core.errors import InvalidInput, RoundhouseError
from frameworks.types import TensorBatch
from tests.app.protocols.decoding import decode_body
from tests.app.protocols.native.specs import find_spec

CONTEXT = AnswerContext("m", "1", "id", 1.23456, 0)
FORMAT = InferCodec()
LENGTH = "inference-header-content-length"


def formed(**headers: str | int) -> InferCodec:
    """Return the codec for a request with these headers; `_` in their names stands for `-`."""
    return FORMAT.for_head([(n.replace("_", "-").encode(), str(v).encode()) for n, v in headers.items()], b"")


def read(name: str, body: object, **headers: str | int) -> InferRequest:
    """Decode `body`: bytes, text, or a value that is written as JSON."""
    text = body if isinstance(body, bytes | str) else json.dumps(body)
    data = text.encode() if isinstance(text, str) else text
    form = formed(**headers)
    decoded: InferRequest = decode_body(form, bytes(form.lead_bytes) + data, Target(name), find_spec)
    return decoded


def read_binary(name: str, head: object, *tensors: bytes, more: int = 0) -> InferRequest:
    text = json.dumps(head).encode()
    return read(name, text + b"".join(tensors), inference_header_content_length=len(text) + more)


def tensors(request: InferRequest) -> dict[str, Any]:
    assert isinstance(request.request, TensorBatch)
    return request.request.inputs


def x(value: Any, datatype: str = "FP32", shape: list[Any] | None = None, **more: object) -> dict[str, Any]:
    """Return the input `x` in JSON."""
    return {"name": "x", "shape": list(np.shape(value)) if shape is None else shape, "datatype": datatype,
            "data": value} | more  # fmt: skip


def in_bytes(size: object, datatype: str = "FP32", shape: list[int] | None = None, name: str = "x") -> dict[str, Any]:
    parameters = {"binary_data_size": size}
    return {"name": name, "shape": shape or [2], "datatype": datatype, "parameters": parameters}


def refusal(name: str, body: object, kind: type[RoundhouseError] = InvalidInput, **headers: str | int) -> str:
    with pytest.raises(kind) as caught:
        read(name, body, **headers)
    assert type(caught.value) is kind
    return caught.value.message


def refusal_binary(name: str, head: object, *tensors: bytes) -> str:
    with pytest.raises(InvalidInput) as caught:
        read_binary(name, head, *tensors)
    return caught.value.message
