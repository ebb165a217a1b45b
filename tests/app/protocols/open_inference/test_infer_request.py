"""A question of the Open Inference Protocol held against a model: it suits it, or what is wrong is named."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.protocols.errors import NotSupported
from app.protocols.open_inference.datatypes import DATATYPES
from app.protocols.open_inference.infer_request import own_name, read_request, read_requested_output
from app.protocols.open_inference.infer_types import InferRequest, InputTensor, ParsedRequest, RequestedOutput
from app.protocols.open_inference.signature import signature_for, supports_batching
from frameworks.errors import InvalidInput, RoundhouseError, UnknownField
from frameworks.generation.types import GenerateRequest
from frameworks.types import NUMPY_DTYPES, Array, ModelSpec, TensorBatch, TensorType, TextRequest, ValueSpec
from tests.app.protocols.native.specs import SPECS, WRITER, model


def tensor(name: str, value: Any, dtype: str = "float32") -> InputTensor:
    return InputTensor(name, DATATYPES[dtype], np.array(value, NUMPY_DTYPES[dtype]))


def texts(name: str, *values: str, shape: tuple[int, ...] = (-1,)) -> InputTensor:
    return InputTensor(name, "BYTES", np.array(values, object).reshape(shape))


def asked(
    spec: str | ModelSpec,
    *inputs: InputTensor,
    outputs: list[RequestedOutput] | None = None,
    **parameters: Any,
) -> InferRequest:
    question = ParsedRequest(list(inputs), outputs, "mine", parameters)
    return read_request(question, SPECS[spec] if isinstance(spec, str) else spec)


def refusal(
    spec: str | ModelSpec, *inputs: InputTensor, kind: type[RoundhouseError] = InvalidInput, **more: Any
) -> str:
    with pytest.raises(kind) as caught:
        asked(spec, *inputs, **more)
    assert type(caught.value) is kind
    return caught.value.message


def test_a_tensor() -> None:
    given = tensor("x", [[1, 2, 3]])
    request = asked("matrix", given)
    assert isinstance(request.request, TensorBatch)
    assert request.request.inputs["x"] is given.value
    assert request.request.output_names == ("y", "z")
    assert request.outputs == (RequestedOutput("y"), RequestedOutput("z"))
    assert (request.id, request.priority, request.timeout_ms, request.stream) == ("mine", 5, None, False)
    assert request.spec is SPECS["matrix"]


def test_several_are_in_the_model_s_order() -> None:
    s, x, b = texts("s", "a"), tensor("x", [[1]]), tensor("b", True, "bool")
    for inputs in ((s, x, b), (b, x, s)):
        request = asked("mixed", *inputs).request
        assert isinstance(request, TensorBatch)
        assert list(request.inputs) == ["x", "s", "b"]
    left_out = asked("mixed", s, x).request
    assert isinstance(left_out, TensorBatch)
    assert list(left_out.inputs) == ["x", "s"]


def test_what_does_not_suit_the_model() -> None:
    x = tensor("x", [[1, 2, 3]])
    wants = "the model wants x: FP32 [-1, 3]"
    assert refusal("matrix") == f"inputs.x: is missing; {wants}"
    assert refusal("matrix", x, x) == "inputs.x: is given twice; leave one"
    assert refusal("matrix", tensor("x", [1.0])) == (
        "inputs.x: has shape [1], and the model wants [-1, 3] (-1 is free)"
    )
    assert refusal("matrix", tensor("x", [[1, 2, 3]], "float64")) == "inputs.x: is FP64, and the model wants FP32"
    unknown = refusal("matrix", x, tensor("X", [1.0]), kind=UnknownField)
    assert unknown == "inputs.X: unknown field; known fields are inputs.x"
    assert refusal("mixed", tensor("x", [[1]])).startswith("inputs.s: is missing; the model wants x: FP32 [-1, -1], ")


def test_outputs() -> None:
    x = tensor("x", [[1, 2, 3]])
    request = asked("matrix", x, outputs=[RequestedOutput("z", binary=True), RequestedOutput("y", classes=3)])
    assert request.outputs == (RequestedOutput("z", binary=True), RequestedOutput("y", classes=3))
    assert isinstance(request.request, TensorBatch)
    assert request.request.output_names == ("z", "y")
    assert asked("matrix", x, outputs=[]).outputs == (RequestedOutput("y"), RequestedOutput("z"))
    assert refusal("matrix", x, outputs=[RequestedOutput("y")] * 2) == "outputs.y: is named twice; leave one"
    unknown = refusal("matrix", x, outputs=[RequestedOutput("yy")], kind=UnknownField)
    assert unknown == 'outputs.yy: unknown field; did you mean "outputs.y"?'
    assert refusal("generate", texts("text_input", "a"), outputs=[RequestedOutput("text_output", classes=1)]) == (
        "outputs.text_output: is BYTES; classification is of numbers"
    )


def test_binary_data_output_is_for_those_that_say_nothing() -> None:
    x = tensor("x", [[1, 2, 3]])
    wanted = [RequestedOutput("y", binary=False), RequestedOutput("z")]
    assert [each.binary for each in asked("matrix", x, binary_data_output=True).outputs] == [True, True]
    assert [each.binary for each in asked("matrix", x, outputs=wanted, binary_data_output=True).outputs] == [
        False,
        True,
    ]
    assert refusal("matrix", x, binary_data_output=1).startswith("parameters.binary_data_output: is 1; wants true")


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
def test_parameters(parameters: dict[str, Any], wanted: tuple[int, float | None]) -> None:
    request = asked("matrix", tensor("x", [[1, 2, 3]]), **parameters)
    assert (request.priority, request.timeout_ms) == wanted


@pytest.mark.parametrize(
    ("name", "value"), [("priority", 10), ("priority", -1), ("priority", True), ("timeout", -1), ("timeout", 1.5)]
)
def test_parameters_that_are_wrong(name: str, value: object) -> None:
    parameters: Any = {name: value}
    assert refusal("matrix", tensor("x", [[1, 2, 3]]), **parameters).startswith(f"{name}: is ")


def test_texts_of_any_shape() -> None:
    for shape in ((2,), (1, 2), (2, 1), (1, 1, 2)):
        request = asked("embed", texts("text", "a", "b", shape=shape))
        assert request.request == TextRequest(["a", "b"])
        assert request.outputs == (RequestedOutput("embeddings"),)
    assert asked("embed", texts("text", shape=(0,))).request == TextRequest([])
    assert asked("classify", texts("text", "a")).outputs == (RequestedOutput("scores"),)


def test_options_of_texts() -> None:
    text = texts("text", "a")
    request = asked("embed", text, normalize=False, truncate=False, anything=1).request
    assert request == TextRequest(["a"], normalize=False, truncate=False)
    assert SPECS["embed"].text is not None
    cuts = replace(SPECS["embed"], text=replace(SPECS["embed"].text, embedding_size=8, shorter_sizes=(4,)))
    assert asked(cuts, text, dimensions=4).request == TextRequest(["a"], dimensions=4)
    assert refusal(cuts, text, dimensions=3).startswith("dimensions: is 3; this model's vectors can be cut to 4")
    assert refusal("embed", text, normalize="yes").startswith("parameters.normalize: is a string; wants true or false")
    assert refusal("embed", tensor("text", [1.0])) == "inputs.text: is FP32, and the model wants BYTES"
    assert refusal("embed").startswith("inputs.text: is missing; the model wants text: BYTES [-1]")


def test_a_text_model_s_own_graph_may_be_asked() -> None:
    ids = tensor("x", [[1, 2]], "int64")
    request = asked("embed-onnx", ids)
    assert isinstance(request.request, TensorBatch)
    assert request.request.output_names == ("y", "z")
    assert asked("embed-onnx", texts("text", "a")).request == TextRequest(["a"])
    assert refusal("embed-onnx", ids, texts("text", "a"), kind=UnknownField).startswith("inputs.x: unknown field")
    assert refusal("embed-onnx").startswith("inputs.text: is missing")


def test_a_prompt() -> None:
    for shape in ((1,), (1, 1), ()):
        request = asked("generate", texts("text_input", "Once", shape=shape), max_tokens=7, temperature=0, foo="bar")
        assert isinstance(request.request, GenerateRequest)
        assert request.request.prompts == ("Once",)
        assert request.request.stopping.max_tokens == 7
        assert request.request.sampling.temperature == 0
        assert request.outputs == (RequestedOutput("text_output"),)
        assert not request.stream
    assert refusal("generate", texts("text_input", "a", "b")).startswith("inputs.text_input: has shape [2]; wants one")
    assert refusal("generate", texts("text_input", "a"), max_tokens=0).startswith("max_tokens: is 0")
    assert refusal("generate", texts("text", "a"), kind=UnknownField).startswith(
        "inputs.text: unknown field; known fields are"
    )


def test_a_prompt_as_clients_of_tritons_backends_ask() -> None:
    """vLLM's own client sends its options twice, and its numbers as strings."""
    options: dict[str, Any] = {"temperature": "0.5", "top_p": "0.95", "max_tokens": "7"}
    tensors = texts("text_input", "Once"), texts("sampling_parameters", json.dumps(options))
    request = asked("generate", *tensors, **options).request
    assert isinstance(request, GenerateRequest)
    assert (request.sampling.temperature, request.sampling.top_p, request.stopping.max_tokens) == (0.5, 0.95, 7)
    assert asked("generate", *tensors).request == request
    seeded = asked("generate", texts("text_input", "a"), random_seed=3, end_id=7).request
    assert isinstance(seeded, GenerateRequest)
    assert (seeded.sampling.seed, seeded.stopping.token_ids) == (3, frozenset({7}))
    assert refusal("generate", texts("text_input", "a"), random_seed=-1).startswith("random_seed: is -1")
    assert refusal("generate", texts("text_input", "a"), texts("sampling_parameters", "{")).startswith(
        "sampling_parameters: is a string, but not of JSON"
    )


@pytest.mark.parametrize("wanted", [True, False])
def test_a_prompt_whose_text_is_to_come_in_pieces(wanted: bool) -> None:
    assert asked(WRITER, texts("text_input", "a"), tensor("stream", [wanted], "bool")).stream is wanted


def test_what_cannot_be_carried() -> None:
    carried = "which this protocol cannot carry; ask POST /infer, which writes it in JSON"
    assert refusal("sequence") == f'inputs: the model wants "x", a sequence(float32), {carried}'
    lists = replace(
        SPECS["matrix"], outputs=(*SPECS["matrix"].outputs, ValueSpec("maps", SPECS["maps"].inputs[0].type))
    )
    x = tensor("x", [[1, 2, 3]])
    assert asked(lists, x).outputs == (RequestedOutput("y"), RequestedOutput("z"))
    told = refusal(lists, x, outputs=[RequestedOutput("maps")])
    assert told == f"outputs.maps: is a sequence(map(string, string)), {carried}"
    only = replace(lists, outputs=lists.outputs[2:])
    assert refusal(only, x).startswith("inputs: none of the model's outputs is a tensor; ask POST /infer")


def test_an_optional_tensor_may_be_left_out() -> None:
    request = asked("optional").request
    assert isinstance(request, TensorBatch)
    assert request.inputs == {}
    assert refusal("optional", tensor("x", [[1.0]])).startswith("inputs.x: has shape [1, 1], and the model wants [-1]")


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ({}, RequestedOutput("y")),
        ({"classification": 0, "binary_data": False}, RequestedOutput("y", 0, False)),
        ({"classification": 3, "else": "x"}, RequestedOutput("y", 3)),
    ],
)
def test_an_output_by_its_parameters(parameters: Mapping[str, Any], wanted: RequestedOutput) -> None:
    assert read_requested_output("y", parameters) == wanted


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"classification": -1}, "outputs.y.classification: is -1; wants a whole number from 0"),
        ({"classification": "3"}, "outputs.y.classification: is a string"),
        ({"binary_data": 1}, "outputs.y.binary_data: is 1; wants true or false"),
    ],
)
def test_parameters_of_an_output_that_are_wrong(parameters: Mapping[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_requested_output("y", parameters)
    assert caught.value.message.startswith(words)


def test_shared_memory() -> None:
    with pytest.raises(NotSupported, match=r"^outputs\.y\.shared_memory_region: shared memory is not served"):
        read_requested_output("y", {"shared_memory_region": "r"})


def test_signatures() -> None:
    assert [tuple(each) for each in signature_for(SPECS["mixed"]).inputs.values()] == [
        ("x", "FP32", (-1, -1), True),
        ("s", "BYTES", None, True),
        ("b", "BOOL", None, False),
    ]
    assert [tuple(each) for each in signature_for(SPECS["classify"]).outputs.values()] == [
        ("scores", "FP32", (-1, 2), True)
    ]
    assert signature_for(SPECS["embed"]).outputs["embeddings"].shape == (-1, -1)
    assert list(signature_for(WRITER).inputs) == ["text_input", "stream", "sampling_parameters"]
    assert signature_for(SPECS["mixed"]) is signature_for(SPECS["mixed"])
    assert signature_for(SPECS["embed-onnx"], of_graph=True).inputs["x"].datatype == "INT64"
    assert not supports_batching(SPECS["matrix"])
    assert supports_batching(SPECS["embed"])
    assert supports_batching(replace(SPECS["matrix"], batched_inputs=frozenset({"x"})))


def test_signatures_are_forgotten_before_they_are_many() -> None:
    for size in range(600):
        spec = model(ValueSpec("x", TensorType("float32", (size,))))
        assert signature_for(spec).inputs["x"].shape == (size,)


def test_the_service_s_own_name_of_a_prompt() -> None:
    assert own_name("prompt: is empty") == "text_input: is empty"
    assert own_name("prompting: no") == "prompting: no"


def test_values_keep_their_type() -> None:
    halves: Array = np.array([0.5], np.float16)
    request = asked("float16", InputTensor("x", "FP16", halves)).request
    assert isinstance(request, TensorBatch)
    assert request.inputs["x"] is halves
