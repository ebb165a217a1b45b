"""Check parsed requests against models: accepted, or refused with the name of the wrong field."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.protocols.open_inference.datatypes import DATATYPES
from app.protocols.open_inference.infer_request import check_request, read_requested_output, with_own_field
from app.protocols.open_inference.infer_types import InferRequest, InputTensor, ParsedRequest, RequestedOutput
from app.protocols.open_inference.signature import signature_for, supports_batching
from app.protocols.shared.errors import NotSupported, to_http
from frameworks.core.errors import InvalidInput, RoundhouseError, UnknownField
from frameworks.generation.types import GenerateRequest
from frameworks.types import NUMPY_DTYPES, Array, ModelSpec, TensorBatch, TensorType, TextRequest, ValueSpec
from tests.app.protocols.native.specs import SPECS, WRITER, model


def tensor(name: str, value: Any, dtype: str = "float32") -> InputTensor:
    return InputTensor(name, DATATYPES[dtype], np.array(value, NUMPY_DTYPES[dtype]))


def texts(name: str, *values: str, shape: tuple[int, ...] = (-1,)) -> InputTensor:
    return InputTensor(name, "BYTES", np.array(values, object).reshape(shape))


def checked(
    spec: str | ModelSpec,
    *inputs: InputTensor,
    outputs: list[RequestedOutput] | None = None,
    **parameters: Any,
) -> InferRequest:
    question = ParsedRequest(list(inputs), outputs, "mine", parameters)
    return check_request(question, SPECS[spec] if isinstance(spec, str) else spec)


def refusal(
    spec: str | ModelSpec, *inputs: InputTensor, kind: type[RoundhouseError] = InvalidInput, **more: Any
) -> str:
    with pytest.raises(kind) as caught:
        checked(spec, *inputs, **more)
    assert type(caught.value) is kind
    return caught.value.message


def test_check_request_keeps_the_tensor() -> None:
    given = tensor("x", [[1, 2, 3]])
    request = checked("matrix", given)
    assert isinstance(request.request, TensorBatch)
    assert request.request.inputs["x"] is given.value
    assert request.request.output_names == ("y", "z")
    assert request.outputs == (RequestedOutput("y"), RequestedOutput("z"))
    assert (request.id, request.priority, request.timeout_ms, request.stream) == ("mine", 5, None, False)
    assert request.spec is SPECS["matrix"]


def test_check_request_orders_inputs_as_the_model() -> None:
    s, x, b = texts("s", "a"), tensor("x", [[1]]), tensor("b", True, "bool")
    for inputs in ((s, x, b), (b, x, s)):
        request = checked("mixed", *inputs).request
        assert isinstance(request, TensorBatch)
        assert list(request.inputs) == ["x", "s", "b"]
    left_out = checked("mixed", s, x).request
    assert isinstance(left_out, TensorBatch)
    assert list(left_out.inputs) == ["x", "s"]


def test_check_request_refuses_wrong_inputs() -> None:
    x = tensor("x", [[1, 2, 3]])
    expects = "the model expects x: FP32 [-1, 3]"
    assert refusal("matrix") == f"inputs.x: expected a tensor, got nothing; {expects}"
    assert refusal("matrix", x, x) == "inputs.x: expected one tensor of this name, got two; leave one out"
    assert refusal("matrix", tensor("x", [1.0])) == ("inputs.x: expected shape [-1, 3] (-1 is free), got [1]")
    assert refusal("matrix", tensor("x", [[1, 2, 3]], "float64")) == "inputs.x: expected FP32, got FP64"
    unknown = refusal("matrix", x, tensor("X", [1.0]), kind=UnknownField)
    assert unknown == "inputs.X: unknown field; known fields are inputs.x"
    assert refusal("mixed", tensor("x", [[1]])).startswith(
        "inputs.s: expected a tensor, got nothing; the model expects x: FP32 [-1, -1], "
    )


def test_check_request_selects_outputs() -> None:
    x = tensor("x", [[1, 2, 3]])
    request = checked("matrix", x, outputs=[RequestedOutput("z", binary=True), RequestedOutput("y", num_classes=3)])
    assert request.outputs == (RequestedOutput("z", binary=True), RequestedOutput("y", num_classes=3))
    assert isinstance(request.request, TensorBatch)
    assert request.request.output_names == ("z", "y")
    assert checked("matrix", x, outputs=[]).outputs == (RequestedOutput("y"), RequestedOutput("z"))
    assert (
        refusal("matrix", x, outputs=[RequestedOutput("y")] * 2)
        == "outputs.y: expected different names, got this one twice; leave one out"
    )
    unknown = refusal("matrix", x, outputs=[RequestedOutput("yy")], kind=UnknownField)
    assert unknown == 'outputs.yy: unknown field; did you mean "outputs.y"?'
    assert refusal("generate", texts("text_input", "a"), outputs=[RequestedOutput("text_output", num_classes=1)]) == (
        "outputs.text_output: expected numbers for classification, got BYTES"
    )


def test_binary_data_output_is_the_default() -> None:
    x = tensor("x", [[1, 2, 3]])
    wanted = [RequestedOutput("y", binary=False), RequestedOutput("z")]
    assert [each.binary for each in checked("matrix", x, binary_data_output=True).outputs] == [True, True]
    assert [each.binary for each in checked("matrix", x, outputs=wanted, binary_data_output=True).outputs] == [
        False,
        True,
    ]
    assert refusal("matrix", x, binary_data_output=1).startswith(
        "parameters.binary_data_output: expected a boolean, got 1"
    )


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({}, (5, None)),
        ({"priority": 0, "timeout": 0}, (5, None)),
        ({"priority": 1, "timeout": 1}, (1, 0.001)),
        ({"priority": 9, "timeout": 2_500_000}, (9, 2500.0)),
        ({"sequence_id": 7, "anything": "else"}, (5, None)),
    ],
)
def test_check_request_reads_priority_and_timeout(parameters: dict[str, Any], wanted: tuple[int, float | None]) -> None:
    request = checked("matrix", tensor("x", [[1, 2, 3]]), **parameters)
    assert (request.priority, request.timeout_ms) == wanted


@pytest.mark.parametrize(
    ("name", "value"), [("priority", 10), ("priority", -1), ("priority", True), ("timeout", -1), ("timeout", 1.5)]
)
def test_check_request_refuses_wrong_parameters(name: str, value: object) -> None:
    parameters: Any = {name: value}
    assert refusal("matrix", tensor("x", [[1, 2, 3]]), **parameters).startswith(
        f"{name}: expected an integer from 0 to "
    )


def test_check_request_accepts_texts_of_any_shape() -> None:
    for shape in ((2,), (1, 2), (2, 1), (1, 1, 2)):
        request = checked("embed", texts("text", "a", "b", shape=shape))
        assert request.request == TextRequest(["a", "b"])
        assert request.outputs == (RequestedOutput("embeddings"),)
    assert checked("embed", texts("text", shape=(0,))).request == TextRequest([])
    assert checked("classify", texts("text", "a")).outputs == (RequestedOutput("scores"),)


def test_check_request_reads_text_options() -> None:
    text = texts("text", "a")
    request = checked("embed", text, normalize=False, truncate=False, anything=1).request
    assert request == TextRequest(["a"], normalize=False, truncate=False)
    assert SPECS["embed"].text is not None
    cuts = replace(SPECS["embed"], text=replace(SPECS["embed"].text, embedding_size=8, shorter_sizes=(4,)))
    assert checked(cuts, text, dimensions=4).request == TextRequest(["a"], dimensions=4)
    assert refusal(cuts, text, dimensions=3) == "dimensions: expected one of 4, 8, got 3"
    assert refusal("embed", text, normalize="yes").startswith("parameters.normalize: expected a boolean, got a string")
    assert refusal("embed", tensor("text", [1.0])) == "inputs.text: expected BYTES, got FP32"
    assert refusal("embed").startswith(
        "inputs.text: expected a tensor, got nothing; the model expects text: BYTES [-1]"
    )


def test_check_request_accepts_tensors_of_text_model() -> None:
    ids = tensor("x", [[1, 2]], "int64")
    request = checked("embed-onnx", ids)
    assert isinstance(request.request, TensorBatch)
    assert request.request.output_names == ("y", "z")
    assert checked("embed-onnx", texts("text", "a")).request == TextRequest(["a"])
    assert refusal("embed-onnx", ids, texts("text", "a"), kind=UnknownField).startswith("inputs.x: unknown field")
    assert refusal("embed-onnx").startswith("inputs.text: expected a tensor, got nothing")


def test_check_request_reads_prompt() -> None:
    for shape in ((1,), (1, 1), ()):
        request = checked("generate", texts("text_input", "Once", shape=shape), max_tokens=7, temperature=0, foo="bar")
        assert isinstance(request.request, GenerateRequest)
        assert request.request.prompts == ("Once",)
        assert request.request.stopping.max_tokens == 7
        assert request.request.sampling.temperature == 0
        assert request.outputs == (RequestedOutput("text_output"),)
        assert not request.stream
    assert refusal("generate", texts("text_input", "a", "b")).startswith(
        "inputs.text_input: expected one element, as [1] or [1, 1], got shape [2]"
    )
    assert (
        refusal("generate", texts("text_input", "a"), max_tokens=0)
        == "max_tokens: expected an integer from 1 to 2147483647, got 0"
    )
    assert refusal("generate", texts("text", "a"), kind=UnknownField).startswith(
        "inputs.text: unknown field; known fields are"
    )


def test_check_request_reads_options_of_triton_clients() -> None:
    """vLLM's own client sends its options twice, and numbers as strings."""
    options: dict[str, Any] = {"temperature": "0.5", "top_p": "0.95", "max_tokens": "7"}
    tensors = texts("text_input", "Once"), texts("sampling_parameters", json.dumps(options))
    request = checked("generate", *tensors, **options).request
    assert isinstance(request, GenerateRequest)
    assert (request.sampling.temperature, request.sampling.top_p, request.stopping.max_tokens) == (0.5, 0.95, 7)
    assert checked("generate", *tensors).request == request
    seeded = checked("generate", texts("text_input", "a"), random_seed=3, end_id=7).request
    assert isinstance(seeded, GenerateRequest)
    assert (seeded.sampling.seed, seeded.stopping.token_ids) == (3, frozenset({7}))
    assert refusal("generate", texts("text_input", "a"), random_seed=-1).startswith("random_seed: expected an integer")
    assert refusal("generate", texts("text_input", "a"), texts("sampling_parameters", "{")).startswith(
        "sampling_parameters: expected JSON in the string"
    )


def test_check_request_accepts_name_of_litellm() -> None:
    for spec in ("embed", "classify", "embed-onnx"):
        assert checked(spec, texts("input_text", "a", "b")).request == TextRequest(["a", "b"])
    assert refusal("embed", tensor("input_text", [1.0])) == "inputs.input_text: expected BYTES, got FP32"
    both = texts("text", "a"), texts("input_text", "b")
    assert refusal("embed", *both) == "inputs.input_text: expected one tensor of this name, got two; leave one out"


@pytest.mark.parametrize("wanted", [True, False])
def test_check_request_reads_stream(wanted: bool) -> None:
    assert checked(WRITER, texts("text_input", "a"), tensor("stream", [wanted], "bool")).stream is wanted


def test_check_request_refuses_unsupported_types() -> None:
    remedy = "send the request to POST /infer, which supports the type"
    assert refusal("sequence") == (
        f'inputs: the model requires "x"; this protocol does not support sequence(float32); {remedy}'
    )
    lists = replace(
        SPECS["matrix"], outputs=(*SPECS["matrix"].outputs, ValueSpec("maps", SPECS["maps"].inputs[0].type))
    )
    x = tensor("x", [[1, 2, 3]])
    assert checked(lists, x).outputs == (RequestedOutput("y"), RequestedOutput("z"))
    message = refusal(lists, x, outputs=[RequestedOutput("maps")])
    assert message == f"outputs.maps: this protocol does not support sequence(map(string, string)); {remedy}"
    only = replace(lists, outputs=lists.outputs[2:])
    assert refusal(only, x).startswith(
        "inputs: the model has no output that is a tensor; send the request to POST /infer"
    )


def test_check_request_accepts_absent_optional_tensor() -> None:
    request = checked("optional").request
    assert isinstance(request, TensorBatch)
    assert request.inputs == {}
    assert refusal("optional", tensor("x", [[1.0]])).startswith(
        "inputs.x: expected shape [-1] (-1 is free), got [1, 1]"
    )


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({}, RequestedOutput("y")),
        ({"classification": 0, "binary_data": False}, RequestedOutput("y", 0, False)),
        ({"classification": 3, "else": "x"}, RequestedOutput("y", 3)),
    ],
)
def test_read_requested_output_reads_parameters(parameters: Mapping[str, Any], wanted: RequestedOutput) -> None:
    assert read_requested_output("y", parameters) == wanted


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"classification": -1}, "outputs.y.classification: expected an integer from 0 to 2147483647, got -1"),
        ({"classification": "3"}, "outputs.y.classification: expected an integer from 0 to 2147483647, got a string"),
        ({"binary_data": 1}, "outputs.y.binary_data: expected a boolean, got 1"),
    ],
)
def test_read_requested_output_refuses_wrong_parameters(parameters: Mapping[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_requested_output("y", parameters)
    assert caught.value.message.startswith(words)


def test_read_requested_output_refuses_shared_memory() -> None:
    with pytest.raises(NotSupported, match=r"^outputs\.y\.shared_memory_region: shared memory is not supported"):
        read_requested_output("y", {"shared_memory_region": "r"})


def test_signature_for_describes_each_task() -> None:
    assert [tuple(each) for each in signature_for(SPECS["mixed"]).inputs.values()] == [
        ("x", "FP32", (-1, -1), True),
        ("s", "BYTES", None, True),
        ("b", "BOOL", None, False),
    ]
    assert [tuple(each) for each in signature_for(SPECS["classify"]).outputs.values()] == [
        ("scores", "FP32", (-1, 2), True)
    ]
    assert signature_for(SPECS["embed"]).outputs["embeddings"].shape == (-1, -1)
    assert list(signature_for(WRITER).inputs)[:4] == [
        "text_input", "stream", "sampling_parameters", "exclude_input_in_output",
    ]  # fmt: skip
    assert [each.required for each in signature_for(WRITER).inputs.values()] == [True] + [False] * 8
    assert signature_for(SPECS["mixed"]) is signature_for(SPECS["mixed"])
    assert signature_for(SPECS["embed-onnx"], of_graph=True).inputs["x"].datatype == "INT64"
    assert not supports_batching(SPECS["matrix"])
    assert supports_batching(SPECS["embed"])
    assert supports_batching(replace(SPECS["matrix"], batched_inputs=frozenset({"x"})))


def test_signature_for_cache_is_bounded() -> None:
    for size in range(600):
        spec = model(ValueSpec("x", TensorType("float32", (size,))))
        assert signature_for(spec).inputs["x"].shape == (size,)


def test_own_field_replaces_prompt() -> None:
    assert with_own_field(to_http(InvalidInput("prompt", "is empty"))).message == "text_input: is empty"
    other = to_http(InvalidInput("prompting", "no"))
    assert with_own_field(other) is other


def test_check_request_keeps_dtype() -> None:
    halves: Array = np.array([0.5], np.float16)
    request = checked("float16", InputTensor("x", "FP16", halves)).request
    assert isinstance(request, TensorBatch)
    assert request.inputs["x"] is halves
