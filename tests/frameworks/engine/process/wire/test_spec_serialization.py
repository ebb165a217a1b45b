from typing import Any

import msgspec
import pytest
from hypothesis import given

from frameworks.core.channel.messages import ProtocolError
from frameworks.engine.process.wire.spec_serialization import spec_from_plain, spec_to_plain
from frameworks.types import ModelSpec, SequenceSpec, TensorType, ValueSpec
from tests.support import wire_strategies
from tests.support.wire_values import is_same


def _sent(spec: ModelSpec) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(spec_to_plain(spec)))


@given(wire_strategies.specs)
def test_spec_sent_returns_equal(spec: ModelSpec) -> None:
    assert is_same(spec_from_plain(_sent(spec)), spec)


@given(wire_strategies.plain_values)
def test_damaged_spec_raises_protocol_error(value: object) -> None:
    with pytest.raises(ProtocolError, match="spec"):
        spec_from_plain(value)


_TENSOR = ValueSpec("x", TensorType("float32", (1, -1)))
_SPEC = ModelSpec("onnx", "tensor", (_TENSOR,), (_TENSOR,), "cpu", "f32", 3, sequence=SequenceSpec(1, {"x": 0}))


@pytest.mark.parametrize("name", ["framework", "task", "inputs", "memory_bytes", "batched_inputs", "sequence"])
def test_spec_with_damaged_field_raises_protocol_error(name: str) -> None:
    plain = _sent(_SPEC) | {name: {"a": b"raw"}}
    with pytest.raises(ProtocolError, match="spec"):
        spec_from_plain(plain)


def test_spec_with_unknown_type_raises_protocol_error() -> None:
    plain = _sent(_SPEC)
    plain["inputs"][0][1][0] = "sparse"
    with pytest.raises(ProtocolError, match="sparse"):
        spec_from_plain(plain)


def test_deep_type_raises_protocol_error() -> None:
    plain = _sent(_SPEC)
    for _ in range(5000):
        plain["inputs"][0][1] = ["optional", plain["inputs"][0][1]]
    with pytest.raises(ProtocolError, match="spec"):
        spec_from_plain(plain)


def test_pad_values_keep_integers() -> None:
    got = spec_from_plain(_sent(_SPEC))
    assert got.sequence is not None
    assert type(got.sequence.pad_values["x"]) is int
