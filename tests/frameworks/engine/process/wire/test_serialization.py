from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.core import errors
from frameworks.core.channel.arrays import ArrayWriter, array_reader
from frameworks.core.channel.messages import ProtocolError
from frameworks.core.errors import (
    EvictionNeeded,
    InvalidInput,
    ModelFailed,
    ModelNotFound,
    Overloaded,
    RoundhouseError,
    UnknownField,
)
from frameworks.core.tenants import Tenant
from frameworks.engine.process.wire.messages import ErrorState
from frameworks.engine.process.wire.serialization import (
    SentAnswer,
    SentRequest,
    answer_from_plain,
    answer_to_plain,
    error_from_plain,
    error_to_plain,
    request_from_plain,
    request_to_plain,
    spec_from_plain,
    tenant_from_plain,
    tenant_to_plain,
)
from frameworks.generation.types import Constraint, Conversation, GenerateRequest, Message, MessageImage
from frameworks.types import (
    ClassifyAnswer,
    EmbedAnswer,
    ModelSpec,
    SequenceSpec,
    TensorBatch,
    TensorType,
    TextRequest,
    ValueSpec,
)
from tests.support import wire_strategies
from tests.support.wire_values import is_same


def _sent(plain: object) -> Any:
    """Return a plain value as the peer reads it."""
    data = msgspec.msgpack.encode(plain, enc_hook=ArrayWriter().write)
    return msgspec.msgpack.decode(data, ext_hook=array_reader())


@given(wire_strategies.requests)
def test_request_sent_returns_equal(request: SentRequest) -> None:
    assert is_same(request_from_plain(_sent(request_to_plain(request))), request)


@given(wire_strategies.answers)
def test_answer_sent_returns_equal(answer: SentAnswer) -> None:
    assert is_same(answer_from_plain(_sent(answer_to_plain(answer))), answer)


@given(wire_strategies.tenants)
def test_tenant_sent_returns_equal(tenant: Tenant) -> None:
    name, weight, shares_caches = _sent(tenant_to_plain(tenant))
    assert is_same(tenant_from_plain((name, weight, shares_caches)), tenant)


@given(wire_strategies.plain_values)
def test_damaged_value_sent_raises_protocol_error(value: object) -> None:
    for read in (request_from_plain, answer_from_plain):
        with pytest.raises(ProtocolError):
            read(value)


@given(
    st.sampled_from(["TensorBatch", "TokenBatch", "TextRequest", "GenerateRequest", "EmbedAnswer", "outputs"]),
    wire_strategies.plain_values,
)
def test_damaged_content_sent_raises_only_protocol_error(name: str, content: object) -> None:
    for read in (request_from_plain, answer_from_plain):
        try:
            read([name, content])
        except ProtocolError:
            continue
        assert name == "outputs"


@pytest.mark.parametrize(
    "content",
    [
        {"texts": ["a"], "top_k": "3"},
        {"texts": "a"},
        {"texts": [1]},
        {"texts": ["a"], "truncate": 1},
        {"texts": ["a"], "truncate": "middle"},
        {"top_k": 3},
        {},
    ],
)
def test_field_of_other_type_raises_protocol_error(content: object) -> None:
    with pytest.raises(ProtocolError, match="TextRequest"):
        request_from_plain(["TextRequest", content])


def test_images_of_conversation_are_sent() -> None:
    large = MessageImage(bytes(range(256)) * 4096, 2, "messages[1].content[1].image_url.url")
    images = (large, MessageImage(b"\x00", 2, "messages[1].content[2].image_url.url"))
    prompt = Conversation((Message("system", "a"), Message("user", "abc", images=images)))
    request = GenerateRequest((prompt,))
    received = request_from_plain(_sent(request_to_plain(request)))
    assert received == request
    assert isinstance(received, GenerateRequest)
    assert isinstance(received.prompts[0], Conversation)
    assert [type(each.data) for each in received.prompts[0].images] == [bytes, bytes]


@pytest.mark.parametrize(
    "image", [{"data": 1, "at": 0, "field": "a"}, {"data": b"a", "at": "0", "field": "a"}, {"data": b"a"}, b"a"]
)
def test_damaged_image_raises_protocol_error(image: object) -> None:
    request = GenerateRequest((Conversation((Message("user", "a", images=(MessageImage(b"a", 0, "a"),)),)),))
    name, content = _sent(request_to_plain(request))
    content["prompts"][0]["messages"][0]["images"] = [image]
    with pytest.raises(ProtocolError, match="GenerateRequest"):
        request_from_plain([name, content])


def test_constraint_of_unknown_kind_raises_protocol_error() -> None:
    request = GenerateRequest(("a",), constraint=Constraint("regex", "a"))
    name, content = _sent(request_to_plain(request))
    content["constraint"]["kind"] = "python"
    with pytest.raises(ProtocolError, match="GenerateRequest"):
        request_from_plain([name, content])


@pytest.mark.parametrize("inputs", [{"x": b"raw"}, {"x": [b"raw"]}, {1: None}, {"x": {b"k": 1}}, {"x": [{1.5: 2}]}])
def test_tensors_of_other_values_raise_protocol_error(inputs: object) -> None:
    with pytest.raises(ProtocolError, match="tensors"):
        request_from_plain(["TensorBatch", inputs, None, None])
    with pytest.raises(ProtocolError, match="tensors"):
        answer_from_plain(["outputs", inputs])


def test_output_names_of_other_values_raise_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="names of outputs"):
        request_from_plain(["TensorBatch", {}, [1], None])


@pytest.mark.parametrize(
    "step", [[1, True], [1.5, True, False], [True, True, False], [1, 1, False], "1", [1, True, None]]
)
def test_steps_of_other_values_raise_protocol_error(step: object) -> None:
    with pytest.raises(ProtocolError, match="step of a sequence"):
        request_from_plain(["TensorBatch", {}, None, step])


def test_embeddings_without_array_raise_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="EmbedAnswer"):
        answer_from_plain(["EmbedAnswer", {"embeddings": [1.0], "tokens": 3}])


@pytest.mark.parametrize("name", ["TensorBatch", "ModelSpec", "Tenant", "Path", "outputs"])
def test_class_of_other_kind_raises_protocol_error(name: str) -> None:
    with pytest.raises(ProtocolError, match="expected one of"):
        request_from_plain([name, {"texts": ["a"]}])


def test_unregistered_class_to_plain_raises_type_error() -> None:
    with pytest.raises(TypeError, match="expected one of"):
        answer_to_plain(TextRequest(["a"]))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected one of"):
        request_to_plain(ClassifyAnswer([]))  # type: ignore[arg-type]


def test_request_to_plain_shares_arrays() -> None:
    array = np.zeros(3, np.float32)
    assert request_to_plain(TensorBatch({"x": array}))[1]["x"] is array
    answer = EmbedAnswer(array, 1)
    assert answer_to_plain(answer)[1] is answer


def _state_sent(error: BaseException) -> ErrorState:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(error_to_plain(error)), type=ErrorState)


_ERRORS: list[RoundhouseError] = [
    InvalidInput("inputs.x", "expected float32"),
    UnknownField.among("inpts", ["inputs"]),
    ModelNotFound("bert", ["bart"]),
    Overloaded("queue: full", 2.5),
    ModelFailed.thread_ended("bert"),
    ModelFailed("its process ended", 1.5),
    EvictionNeeded("needs 3 bytes"),
]


@pytest.mark.parametrize("error", _ERRORS, ids=str)
def test_error_sent_returns_class_and_state(error: RoundhouseError) -> None:
    got = error_from_plain(_state_sent(error))
    assert type(got) is type(error)
    assert str(got) == str(error)
    assert vars(got) == vars(error)


def test_every_error_class_is_known() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, RoundhouseError)]
    for kind in kinds:
        error = kind.__new__(kind)
        RoundhouseError.__init__(error, "a message")
        error.__dict__ |= {"field": "a", "reason": "b", "retry_after_s": 1.0}
        assert type(error_from_plain(_state_sent(error))) is kind


class _LocalError(InvalidInput):
    """Known to one process only."""


def test_unknown_subclass_sent_returns_known_base() -> None:
    got = error_from_plain(_state_sent(_LocalError("x", "wrong")))
    assert type(got) is InvalidInput
    assert got.field == "x"


def test_foreign_error_sent_returns_runtime_error() -> None:
    got = error_from_plain(_state_sent(ValueError("bad")))
    assert type(got) is RuntimeError
    assert str(got) == "ValueError: bad"


@pytest.mark.parametrize("name", ["Path", "ProtocolError", "similar_names", "InvalidInput", "Overloaded"])
def test_damaged_error_returns_model_failed(name: str) -> None:
    got = error_from_plain(ErrorState(name, "a message"))
    assert type(got) is ModelFailed
    assert got.message == "a message"


def test_error_with_surrogate_is_sendable() -> None:
    assert error_from_plain(_state_sent(ModelFailed("caf\u00e9 \ud800"))).args == ("caf\u00e9 ?",)


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
    plain["inputs"][0]["type"]["type"] = "sparse"
    with pytest.raises(ProtocolError, match="sparse"):
        spec_from_plain(plain)


def test_deep_type_raises_protocol_error() -> None:
    plain = _sent(_SPEC)
    for _ in range(5000):
        plain["inputs"][0]["type"] = {"type": "optional", "inner": plain["inputs"][0]["type"]}
    with pytest.raises(ProtocolError, match="spec"):
        spec_from_plain(plain)


def test_pad_values_keep_integers() -> None:
    got = spec_from_plain(_sent(_SPEC))
    assert got.sequence is not None
    assert type(got.sequence.pad_values["x"]) is int
