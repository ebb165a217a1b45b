"""Read the messages of inference calls. In large ones the contents of tensors stay bytes for a thread to decode."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from app.grpc.call import GrpcError
from app.grpc.messages import Message, ModelInferRequest, PredictRequest, parse
from frameworks.core.protobuf_wire import BYTES, FIXED32, FieldReader, TooManyFields, WireError, write_field

LARGE_BYTES = 16 * 1024
"""From this size on a message is split; below, protobuf reads any message in less than a millisecond."""
MAX_TENSORS = 1024
"""Inputs of one message."""
MAX_FIELDS = 4 * MAX_TENSORS
"""Fields of one message beside the contents of its tensors. A tensor has three or four."""
MAX_REST_BYTES = 512 * 1024
"""Bytes of a message beside the contents of its tensors: names, shapes and parameters."""

_INPUTS = ModelInferRequest.DESCRIPTOR.fields_by_name["inputs"].number
_RAW = ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number
_CONTENTS = ModelInferRequest.DESCRIPTOR.fields_by_name["inputs"].message_type.fields_by_name["contents"].number
_DATA = PredictRequest.DESCRIPTOR.fields_by_name["data"].number

Span = tuple[int, int]
"""Where bytes of the serialized message begin and end."""
Split = TypeVar("Split")


class ReceivedInfer(NamedTuple):
    """A ModelInferRequest. `raw`: its raw_input_contents.

    `contents` None: the message is whole. Otherwise it lacks raw_input_contents and the `contents` of its inputs, which
    are these spans of `serialized`; an input has several where protobuf has to merge them, and none without contents.
    """

    message: Message
    raw: Sequence[bytes | memoryview]
    contents: list[list[Span]] | None
    serialized: bytes
    num_fields: int = 0


class ReceivedPredict(NamedTuple):
    """A PredictRequest. `data` None: the message is whole; else its values are these pieces, float32, little-endian."""

    message: Message
    data: list[memoryview] | None


def read_infer(serialized: bytes, large_bytes: int = LARGE_BYTES) -> ReceivedInfer:
    """Read a ModelInferRequest. Takes a few milliseconds at most, whatever its size. Raises GrpcError.

    `large_bytes`: from this size on the message is split.
    """
    if len(serialized) < large_bytes:
        message = parse(ModelInferRequest, serialized)
        return ReceivedInfer(message, message.raw_input_contents, None, serialized)
    return _split(_split_infer, serialized, ModelInferRequest)


def read_predict(serialized: bytes, large_bytes: int = LARGE_BYTES) -> ReceivedPredict:
    """Read a PredictRequest, as `read_infer`."""
    if len(serialized) < large_bytes:
        return ReceivedPredict(parse(PredictRequest, serialized), None)
    return _split(_split_predict, serialized, PredictRequest)


def _split(split: Callable[[bytes], Split], serialized: bytes, kind: Message) -> Split:
    try:
        return split(serialized)
    except WireError as error:
        raise GrpcError("INVALID_ARGUMENT", f"expected a {kind.DESCRIPTOR.full_name}, got {error}") from None
    except TooManyFields:
        reason = f"expected at most {MAX_FIELDS} fields beside the contents of tensors, got more; send several requests"
        raise GrpcError("INVALID_ARGUMENT", f"{kind.DESCRIPTOR.name}: {reason}") from None


def _split_infer(serialized: bytes) -> ReceivedInfer:
    view = memoryview(serialized)
    reader = FieldReader(serialized, MAX_FIELDS)
    rest = _Rest(view, ModelInferRequest)
    raw: list[memoryview] = []
    contents: list[list[Span]] = []
    for number, wire_type, start, value, end in reader.fields(0, len(serialized)):
        if wire_type != BYTES or number not in (_RAW, _INPUTS):
            rest.keep(start, end)
        elif number == _RAW:
            raw.append(view[value:end])
        else:
            if len(contents) == MAX_TENSORS:
                raise GrpcError("INVALID_ARGUMENT", f"inputs: expected at most {MAX_TENSORS} tensors, got more")
            spans: list[Span] = []
            kept = _Rest(view, ModelInferRequest)
            for field, field_type, field_start, field_value, field_end in reader.fields(value, end):
                if field == _CONTENTS and field_type == BYTES:
                    spans.append((field_value, field_end))
                else:
                    kept.keep(field_start, field_end)
            rest.add(write_field(_INPUTS, kept.kept))
            contents.append(spans)
    return ReceivedInfer(rest.parse(), raw, contents, serialized, reader.num_fields)


def _split_predict(serialized: bytes) -> ReceivedPredict:
    view = memoryview(serialized)
    rest = _Rest(view, PredictRequest)
    data: list[memoryview] = []
    for number, wire_type, start, value, end in FieldReader(serialized, MAX_FIELDS).fields(0, len(serialized)):
        if number == _DATA and wire_type in (BYTES, FIXED32):
            data.append(view[value:end])
        else:
            rest.keep(start, end)
    if any(len(piece) % 4 for piece in data):
        raise WireError("packed numbers that end within a number")
    return ReceivedPredict(rest.parse(), data)


class _Rest:
    """The fields of a message beside the contents of its tensors."""

    def __init__(self, view: memoryview, kind: Message) -> None:
        self._view = view
        self._kind = kind
        self.kept = bytearray()

    def keep(self, start: int, end: int) -> None:
        """Keep these bytes of the message. Raises GrpcError if they are too many."""
        self._check(end - start)
        self.kept += self._view[start:end]

    def add(self, field: bytes) -> None:
        self._check(len(field))
        self.kept += field

    def parse(self) -> Message:
        return parse(self._kind, bytes(self.kept))

    def _check(self, added: int) -> None:
        if len(self.kept) + added > MAX_REST_BYTES:
            reason = f"expected at most {MAX_REST_BYTES} bytes beside the contents of tensors, got more"
            raise GrpcError("INVALID_ARGUMENT", f"{self._kind.DESCRIPTOR.name}: {reason}; send shorter names")
