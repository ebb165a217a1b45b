"""ModelInferRequests that differ from earlier ones in their raw contents only: protobuf does not read them again.

Most clients send one shape again and again. Reading and checking such a message takes a fifth of a small call.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from app.grpc.call import Call, earlier_ms
from app.grpc.messages import ModelInferRequest
from app.grpc.received import LARGE_BYTES
from app.protocols.open_inference.infer_types import InferRequest
from frameworks.core.protobuf_wire import BYTES, FieldReader, TooManyFields, WireError
from frameworks.types import TensorBatch, Value

_RAW = ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number
# Clients choose names and shapes: no more than these are remembered.
_MAX_LENGTHS = 256
_MAX_OF_LENGTH = 8
_MOST_HEAD_BYTES = 1024
# Messages with more fields are not remembered.
_MAX_FIELDS = 64


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A message up to its raw contents, the bytes of one tensor from `head` on, and the request that it became.

    `dtype` and `shape`: of the tensor. `decoded`: for the model of its spec, without the tensor's values.
    """

    head: bytes
    model: str
    version: str
    dtype: "np.dtype[np.generic]"
    shape: tuple[int, ...]
    input_name: str
    decoded: InferRequest

    def decode(self, serialized: bytes, call: Call) -> InferRequest:
        """Return the request that is in `serialized`, whose head is this one."""
        decoded = self.decoded
        tensor = np.frombuffer(serialized, self.dtype, offset=len(self.head)).reshape(self.shape)
        # Some kernels require aligned numbers, and the others are slower on unaligned ones.
        inputs: dict[str, Value] = {self.input_name: tensor if tensor.flags.aligned else tensor.copy()}
        assert isinstance(decoded.request, TensorBatch)
        return InferRequest(
            decoded.request._replace(inputs=inputs),
            decoded.spec,
            decoded.outputs,
            decoded.id,
            decoded.priority,
            earlier_ms(decoded.timeout_ms, call),
        )


class KnownMessages:
    """Owned by the event loop."""

    def __init__(self) -> None:
        # By the bytes of a whole message, the latest first; and how many messages were noted.
        self._known: dict[int, list[KnownMessage]] = {}
        self._noted: Counter[int] = Counter()

    def find(self, serialized: bytes) -> KnownMessage | None:
        """Return the known message with the head and the length of this one."""
        for known in self._known.get(len(serialized), ()):
            if serialized.startswith(known.head):
                return known
        return None

    def note(self, serialized: bytes, model: str, version: str, decoded: InferRequest) -> None:
        """Remember a message that `find` did not know and that was decoded.

        Of the messages of one length the 2nd, 4th, 8th … are remembered: those of some clients never repeat.
        """
        size = len(serialized)
        if size >= LARGE_BYTES or type(decoded.request) is not TensorBatch:
            return
        self._noted[size] = noted = self._noted[size] + 1
        if noted == 1 or noted & (noted - 1):
            return
        known = _known_of(serialized, model, version, decoded)
        if known is not None:
            others = [each for each in self._known.get(size, ()) if each.head != known.head]
            self._known[size] = [known, *others[: _MAX_OF_LENGTH - 1]]
        if len(self._noted) > _MAX_LENGTHS:
            self._known.clear()
            self._noted.clear()


def _known_of(serialized: bytes, model: str, version: str, decoded: InferRequest) -> KnownMessage | None:
    """Return None unless the message ends with its only raw contents, which are the only tensor of the request."""
    assert isinstance(decoded.request, TensorBatch)
    name, value = next(iter(decoded.request.inputs.items()), ("", None))
    if not isinstance(value, np.ndarray) or len(decoded.request.inputs) > 1 or value.dtype.kind not in "iuf":
        return None
    try:
        fields = list(FieldReader(serialized, _MAX_FIELDS).fields(0, len(serialized)))
    except (WireError, TooManyFields):
        return None
    number, wire_type, _, start, _ = fields[-1]
    if [each[0] for each in fields].count(_RAW) > 1 or number != _RAW or wire_type != BYTES:
        return None
    # A tensor whose values are converted, or that is empty, is none of these bytes.
    if start > _MOST_HEAD_BYTES or not value.size or value.tobytes() != serialized[start:]:
        return None
    without_values = decoded._replace(request=decoded.request._replace(inputs={}))
    return KnownMessage(serialized[:start], model, version, value.dtype, value.shape, name, without_values)
