"""Check a parsed request against its model and build the request that the pipeline runs, for REST and gRPC."""

from collections.abc import Mapping

from app.protocols.open_inference.content_tensors import IMAGE_INPUT, read_files, read_task
from app.protocols.open_inference.generate_fields import MAX_TIMEOUT_US
from app.protocols.open_inference.generate_options import collect_options
from app.protocols.open_inference.generate_request import parse_generate
from app.protocols.open_inference.generate_tensors import read_options
from app.protocols.open_inference.infer_types import (
    InferRequest,
    InputTensor,
    Parameters,
    ParsedRequest,
    RequestedOutput,
)
from app.protocols.open_inference.signature import (
    GENERATED_OUTPUT,
    INDEX_OUTPUT,
    OPTIONS_INPUT,
    PROMPT_INPUT,
    TEXT_INPUT,
    Signature,
    TensorSignature,
    explain_unsupported_type,
    reads_content,
    signature_for,
)
from app.protocols.shared.bodies import MAX_INT32
from app.protocols.shared.errors import ErrorReply, NotSupported
from app.protocols.shared.fields.images import check_vector_size
from app.protocols.shared.fields.sequences import read_step
from app.protocols.shared.fields.texts import MAX_TEXTS, check_dimensions
from app.protocols.shared.json.body import describe_value
from app.protocols.shared.json.shapes import check_shape
from frameworks.core.errors import MAX_SHOWN_CHARACTERS, InvalidInput, UnknownField
from frameworks.images.spec import ImageRequest
from frameworks.tasks.types import TaskRequest
from frameworks.types import (
    DEFAULT_PRIORITY,
    LAST_PRIORITY,
    Array,
    ModelSpec,
    SequenceStep,
    TensorBatch,
    TextRequest,
    TextSpec,
    Value,
)

SEQUENCE_FIELDS = ("sequence_id", "sequence_start", "sequence_end")
"""Parameters of the sequence extension, as tritonclient sends them."""


def check_request(parsed: ParsedRequest, spec: ModelSpec) -> InferRequest:
    """Check inputs, outputs and parameters. Raises InvalidInput and UnknownField, which name the wrong one."""
    signature = _signature_for(parsed, spec)
    if signature.unsupported is not None:
        raise InvalidInput("inputs", signature.unsupported)
    if spec.generation is not None:
        return _check_generation(parsed, signature, spec)
    inputs = _inputs_by_name(parsed.inputs, signature)
    outputs = _requested_outputs(parsed, signature)
    parameters = parsed.parameters
    request: TensorBatch | TextRequest | ImageRequest | TaskRequest
    if signature.reads_texts:
        request = _read_content(inputs, parameters, outputs, spec)
    else:
        values: dict[str, Value] = {}
        values.update(inputs)
        is_all = outputs is signature.all_outputs
        request = TensorBatch(values, signature.output_names if is_all else tuple([each.name for each in outputs]))
    if not parameters:
        return InferRequest(request, spec, outputs, parsed.id, DEFAULT_PRIORITY, None)
    if spec.state is not None and type(request) is TensorBatch:
        request = request._replace(sequence=_read_sequence(parameters))
    priority = read_priority(parameters)
    return InferRequest(request, spec, outputs, parsed.id, priority, read_timeout_ms(parameters))


def _read_sequence(parameters: Parameters) -> SequenceStep | None:
    """Return the step of a sequence; None without an id, and for 0 and an empty one, which name none in Triton."""
    if parameters.get(SEQUENCE_FIELDS[0]) in (None, 0, ""):
        return None
    number, start, end = map(parameters.get, SEQUENCE_FIELDS)
    return read_step(number, start, end, SEQUENCE_FIELDS)


def wants_text_in_parts(request: InferRequest) -> bool:
    """Whether ModelStreamInfer sends a generated text in several responses."""
    assert request.generation is not None
    return request.generation.stream is not False or any(output.name == INDEX_OUTPUT for output in request.outputs)


def read_priority(parameters: Parameters) -> int:
    """Return the priority, 1 to 9; 0 is the default, as in Triton."""
    return _read_integer(parameters, "priority", "", LAST_PRIORITY) or DEFAULT_PRIORITY


def read_timeout_ms(parameters: Parameters) -> float | None:
    """Convert `timeout`, in microseconds, to milliseconds; None for 0 and where it is left out."""
    timeout_us = _read_integer(parameters, "timeout", "", MAX_TIMEOUT_US)
    return timeout_us / 1e3 if timeout_us else None


def read_requested_output(name: str, parameters: Parameters) -> RequestedOutput:
    """Read the parameters of a requested output. Raises InvalidInput, NotSupported."""
    if not parameters:
        return RequestedOutput(name)
    within = f"outputs.{name[:MAX_SHOWN_CHARACTERS]}."
    refuse_shared_memory(parameters, within)
    num_classes = _read_integer(parameters, "classification", within, MAX_INT32) or 0
    return RequestedOutput(name, num_classes, _read_boolean(parameters, "binary_data", within))


def refuse_shared_memory(parameters: Parameters, within: str) -> None:
    """Raises NotSupported where the caller places a tensor in shared memory."""
    if "shared_memory_region" in parameters:
        raise NotSupported(
            f"{within}shared_memory_region: shared memory is not supported; put the tensor into the request or response"
        )


def with_own_field(error: ErrorReply) -> ErrorReply:
    """Replace the fields `prompt`, `image` and `sequence` of the pipeline by those of this protocol."""
    if error.field == "sequence":
        return error.with_field(SEQUENCE_FIELDS[0])
    if error.field == "prompt":
        return error.with_field(PROMPT_INPUT)
    if error.field is not None and (error.field == IMAGE_INPUT or error.field.startswith(f"{IMAGE_INPUT}[")):
        return error.with_field(f"inputs.{error.field}")
    return error


def _signature_for(parsed: ParsedRequest, spec: ModelSpec) -> Signature:
    signature = signature_for(spec)
    if not reads_content(spec) or (spec.framework == "pytorch" and (spec.image is None or not spec.image.input_name)):
        return signature
    graph = signature_for(spec, of_graph=True)
    names = {tensor.name for tensor in parsed.inputs}
    # A graph may have an input with the name of the content, and another datatype.
    has_content = any(tensor.name in signature.inputs and tensor.datatype == "BYTES" for tensor in parsed.inputs)
    return graph if names and not has_content and graph.inputs.keys() >= names else signature


def _check_generation(parsed: ParsedRequest, signature: Signature, spec: ModelSpec) -> InferRequest:
    """Check a request for text: its options are inputs, parameters, or in `sampling_parameters`."""
    assert spec.generation is not None
    named = _requested_outputs(parsed, signature) if parsed.outputs else ()
    for output in named:
        if output.num_classes:
            raise InvalidInput(f"outputs.{output.name}", "expected no classification of a generated text, got one")
    tensors = read_options(parsed.inputs, signature.inputs)
    body = {**parsed.parameters, PROMPT_INPUT: tensors.pop(PROMPT_INPUT)}
    if OPTIONS_INPUT in tensors:
        body[OPTIONS_INPUT] = tensors.pop(OPTIONS_INPUT)
    options = collect_options(body, tensors=tensors).returning(output.name for output in named)
    generation = parse_generate(options, spec.generation)
    if not named:
        binary = _read_boolean(parsed.parameters, "binary_data_output", "parameters.")
        names = [name for name in signature.output_names if name == GENERATED_OUTPUT or name in generation.returned]
        named = tuple([RequestedOutput(name, binary=binary) for name in names])
    return InferRequest(
        generation.request,
        spec,
        named,
        parsed.id,
        generation.priority,
        generation.timeout_ms,
        generation.stream is True,
        generation,
    )


def _inputs_by_name(tensors: list[InputTensor], signature: Signature) -> dict[str, Array]:
    """Return the inputs in the model's order, so that requests in any order share batches and cached responses."""
    declared = signature.inputs
    inputs: dict[str, Array] = {}
    for name, datatype, value, _ in tensors:
        own_name = signature.other_names.get(name, name)
        expected = declared.get(own_name)
        if expected is None:
            raise _unknown(name, declared, signature, "inputs")
        if own_name in inputs:
            raise InvalidInput(f"inputs.{name}", "expected one tensor of this name, got two; leave one out")
        if datatype != expected.datatype:
            raise InvalidInput(f"inputs.{name}", f"expected {expected.datatype}, got {datatype}")
        if not signature.reads_texts:
            check_shape(value.shape, expected.shape, f"inputs.{name}")
        inputs[own_name] = value
    if len(inputs) == 1 == len(declared):
        return inputs
    for expected in declared.values():
        if expected.required and expected.name not in inputs:
            raise InvalidInput(
                f"inputs.{expected.name}", f"expected a tensor, got nothing; the model expects {_describe(declared)}"
            )
    return {name: inputs[name] for name in declared if name in inputs}


def _requested_outputs(parsed: ParsedRequest, signature: Signature) -> tuple[RequestedOutput, ...]:
    """Return the named outputs, or all that the protocol supports, with the request's default for `binary`."""
    parameters = parsed.parameters
    binary = _read_boolean(parameters, "binary_data_output", "parameters.") if parameters else None
    if not parsed.outputs:
        every = signature.all_outputs
        return every if binary is None else tuple([output._replace(binary=binary) for output in every])
    outputs: dict[str, RequestedOutput] = {}
    for output in parsed.outputs:
        declared = signature.outputs.get(output.name)
        if declared is None:
            raise _unknown(output.name, signature.outputs, signature, "outputs")
        if output.name in outputs:
            raise InvalidInput(f"outputs.{output.name}", "expected different names, got this one twice; leave one out")
        if output.num_classes and declared.datatype == "BYTES":
            raise InvalidInput(f"outputs.{output.name}", "expected numbers for classification, got BYTES")
        outputs[output.name] = output if output.binary is not None else output._replace(binary=binary)
    return tuple(outputs.values())


def _unknown(
    name: str, known: Mapping[str, TensorSignature], signature: Signature, within: str
) -> InvalidInput | UnknownField:
    if name in signature.unsupported_types:
        return InvalidInput(f"{within}.{name}", explain_unsupported_type(signature.unsupported_types[name]))
    return UnknownField.among(name, known, f"{within}.")


def _read_content(
    inputs: Mapping[str, Array], parameters: Parameters, outputs: tuple[RequestedOutput, ...], spec: ModelSpec
) -> TextRequest | ImageRequest | TaskRequest:
    """Read the texts or the images of a request, one of the two, or the inputs of a task. Raises InvalidInput."""
    if spec.pipeline is not None:
        return read_task(inputs, spec.pipeline)
    if len(inputs) != 1:
        found = " and ".join(inputs) or "none of them"
        raise InvalidInput("inputs", f"expected exactly one of {TEXT_INPUT} and {IMAGE_INPUT}, got {found}")
    if IMAGE_INPUT in inputs:
        return _read_images(read_files(inputs[IMAGE_INPUT]), parameters, outputs, spec)
    assert spec.text is not None
    return _read_texts(inputs[TEXT_INPUT], parameters, spec.text)


def _read_images(
    images: list[bytes], parameters: Parameters, outputs: tuple[RequestedOutput, ...], spec: ModelSpec
) -> ImageRequest:
    names = tuple([output.name for output in outputs]) if spec.task == "tensor" else None
    if not parameters:
        return ImageRequest(images, output_names=names)
    dimensions = _read_integer(parameters, "dimensions", "", MAX_INT32, lowest=1)
    check_vector_size(dimensions, spec)
    normalize = _read_boolean(parameters, "normalize", "parameters.")
    return ImageRequest(images, normalize, output_names=names)


def _read_texts(texts: Array, parameters: Parameters, text: TextSpec) -> TextRequest:
    if texts.size > MAX_TEXTS:
        raise InvalidInput(
            "inputs.text", f"expected at most {MAX_TEXTS} texts, got {texts.size}; send several requests"
        )
    flat: list[str] = texts.reshape(-1).tolist()
    if not parameters:
        return TextRequest(flat)
    return TextRequest(
        flat,
        normalize=_read_boolean(parameters, "normalize", "parameters."),
        truncate=_read_boolean(parameters, "truncate", "parameters.") is not False,
        dimensions=check_dimensions(_read_integer(parameters, "dimensions", "", MAX_INT32, lowest=1), text),
    )


def _read_boolean(parameters: Parameters, name: str, within: str) -> bool | None:
    value = parameters.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise InvalidInput(f"{within}{name}", f"expected a boolean, got {describe_value(value)}")


def _read_integer(parameters: Parameters, name: str, within: str, highest: int, lowest: int = 0) -> int | None:
    value = parameters.get(name)
    if value is None:
        return None
    if type(value) is not int or not lowest <= value <= highest:
        given = describe_value(value)
        raise InvalidInput(f"{within}{name}", f"expected an integer from {lowest} to {highest}, got {given}")
    return value


def _describe(declared: Mapping[str, TensorSignature]) -> str:
    return ", ".join(
        f"{each.name}: {each.datatype} {list(each.shape) if each.shape is not None else ''}".rstrip()
        for each in declared.values()
    )
