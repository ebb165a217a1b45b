"""Step 1, DECODE, of what all doors of the protocol share: a question held against the model that it is for."""

from collections.abc import Mapping
from typing import Any

from app.protocols.errors import NotSupported
from app.protocols.generation_fields import read_whole
from app.protocols.json_body import describe_value
from app.protocols.open_inference.generate_request import gather, read_wanted_text
from app.protocols.open_inference.infer_types import (
    InferRequest,
    InputTensor,
    Parameter,
    ParsedRequest,
    RequestedOutput,
)
from app.protocols.open_inference.signature import (
    OPTIONS_INPUT,
    PROMPT_INPUT,
    STREAM_INPUT,
    TEXT_INPUT,
    Signature,
    TensorSignature,
    explain_unsupported_type,
    signature_for,
)
from app.protocols.shapes import check_shape
from app.protocols.text_fields import MAX_TEXTS, read_dimensions
from frameworks.errors import InvalidInput, UnknownField
from frameworks.generation.types import GenerateRequest
from frameworks.types import (
    DEFAULT_PRIORITY,
    LAST_PRIORITY,
    Array,
    ModelSpec,
    TensorBatch,
    TextRequest,
    TextSpec,
    Value,
)

Parameters = Mapping[str, Parameter]
_LONGEST_TIMEOUT_US = 2**63 - 1
_MOST_CLASSES = 2**31 - 1


def read_request(question: ParsedRequest, spec: ModelSpec) -> InferRequest:
    """Raises InvalidInput, UnknownField, which name the input, output or parameter."""
    signature = _signature_for(question, spec)
    if signature.refusal is not None:
        raise InvalidInput("inputs", signature.refusal)
    given = _by_name(question.inputs, signature)
    outputs = _outputs(question, signature)
    parameters = question.parameters
    request: TensorBatch | TextRequest | GenerateRequest
    stream = False
    if spec.generation is not None:
        options = dict(parameters)
        if OPTIONS_INPUT in given:
            options[OPTIONS_INPUT] = _one(given[OPTIONS_INPUT], OPTIONS_INPUT)
        request = read_generation(_one(given[PROMPT_INPUT], PROMPT_INPUT), options, spec)
        stream = STREAM_INPUT in given and bool(_one(given[STREAM_INPUT], STREAM_INPUT))
    elif spec.text is not None and TEXT_INPUT in given:
        request = _read_texts(given[TEXT_INPUT], parameters, spec.text)
    else:
        values: dict[str, Value] = {}
        values.update(given)
        is_all = outputs is signature.wanted
        request = TensorBatch(values, signature.output_names if is_all else tuple([each.name for each in outputs]))
    if not parameters:
        return InferRequest(request, spec, outputs, question.id, DEFAULT_PRIORITY, None, stream)
    priority = read_priority(parameters)
    return InferRequest(request, spec, outputs, question.id, priority, read_timeout_ms(parameters), stream)


def read_generation(prompt: str, parameters: Parameters, spec: ModelSpec) -> GenerateRequest:
    """What continues a prompt as the parameters say, in the words of the generate extension; those that say nothing of
    it are harmless. Raises InvalidInput, UnknownField.
    """
    assert spec.generation is not None
    options = gather({**parameters, PROMPT_INPUT: prompt})
    try:
        return read_wanted_text(options, spec.generation).request
    except InvalidInput as error:
        raise options.renamed(error) from None


def read_priority(parameters: Parameters) -> int:
    """0 is the default, as Triton has it."""
    return read_whole(parameters, "priority", 0, LAST_PRIORITY) or DEFAULT_PRIORITY


def read_timeout_ms(parameters: Parameters) -> float | None:
    """`timeout`, which is in microseconds. None where there is none, or 0, which says so."""
    timeout_us = read_whole(parameters, "timeout", 0, _LONGEST_TIMEOUT_US)
    return timeout_us / 1e3 if timeout_us else None


def read_requested_output(name: str, parameters: Parameters) -> RequestedOutput:
    """An output by the parameters that it came with. Raises InvalidInput, NotSupported."""
    if not parameters:
        return RequestedOutput(name)
    within = f"outputs.{name}."
    refuse_shared_memory(parameters, within)
    classes = read_whole(
        {f"{within}classification": parameters.get("classification")}, f"{within}classification", 0, _MOST_CLASSES
    )
    binary = parameters.get("binary_data")
    if binary is not None and not isinstance(binary, bool):
        raise InvalidInput(f"{within}binary_data", f"is {describe_value(binary)}; wants true or false")
    return RequestedOutput(name, classes or 0, binary)


def refuse_shared_memory(parameters: Parameters, within: str) -> None:
    """Raises NotSupported where a tensor lies, or is to be put, in memory that is not the request's own."""
    if "shared_memory_region" in parameters:
        raise NotSupported(
            f"{within}shared_memory_region: shared memory is not served; send and take the tensor itself"
        )


def own_name(message: str) -> str:
    """The message of an InvalidInput in this protocol's words: the service knows prompts and texts alone."""
    return PROMPT_INPUT + message[len("prompt") :] if message.startswith("prompt: ") else message


def _signature_for(question: ParsedRequest, spec: ModelSpec) -> Signature:
    signature = signature_for(spec)
    if spec.text is None or spec.framework == "pytorch":
        return signature
    graph = signature_for(spec, of_graph=True)
    names = [tensor.name for tensor in question.inputs]
    return graph if names and TEXT_INPUT not in names and graph.inputs.keys() >= set(names) else signature


def _by_name(tensors: list[InputTensor], signature: Signature) -> dict[str, Array]:
    """In the model's order: requests that name them in different orders share batches and kept answers."""
    declared = signature.inputs
    given: dict[str, Array] = {}
    for name, datatype, value, _ in tensors:
        wanted = declared.get(name)
        if wanted is None:
            raise _unknown(name, declared, signature, "inputs")
        if name in given:
            raise InvalidInput(f"inputs.{name}", "is given twice; leave one")
        if datatype != wanted.datatype:
            raise InvalidInput(f"inputs.{name}", f"is {datatype}, and the model wants {wanted.datatype}")
        if not signature.reads_texts:
            check_shape(value.shape, wanted.shape, f"inputs.{name}")
        given[name] = value
    if len(given) == 1 == len(declared):
        return given
    for wanted in declared.values():
        if wanted.required and wanted.name not in given:
            raise InvalidInput(f"inputs.{wanted.name}", f"is missing; the model wants {_describe(declared)}")
    return {name: given[name] for name in declared if name in given}


def _outputs(question: ParsedRequest, signature: Signature) -> tuple[RequestedOutput, ...]:
    """Those that are named, or all that can be carried. `binary` is settled where the request says so for all."""
    binary = question.parameters.get("binary_data_output") if question.parameters else None
    if binary is not None and not isinstance(binary, bool):
        raise InvalidInput("parameters.binary_data_output", f"is {describe_value(binary)}; wants true or false")
    if not question.outputs:
        return signature.wanted if binary is None else tuple([w._replace(binary=binary) for w in signature.wanted])
    wanted: dict[str, RequestedOutput] = {}
    for output in question.outputs:
        declared = signature.outputs.get(output.name)
        if declared is None:
            raise _unknown(output.name, signature.outputs, signature, "outputs")
        if output.name in wanted:
            raise InvalidInput(f"outputs.{output.name}", "is named twice; leave one")
        if output.classes and declared.datatype == "BYTES":
            raise InvalidInput(f"outputs.{output.name}", "is BYTES; classification is of numbers")
        wanted[output.name] = output if output.binary is not None else output._replace(binary=binary)
    return tuple(wanted.values())


def _unknown(
    name: str, known: Mapping[str, TensorSignature], signature: Signature, within: str
) -> InvalidInput | UnknownField:
    if name in signature.untold:
        return InvalidInput(f"{within}.{name}", f"is {explain_unsupported_type(signature.untold[name])}")
    return UnknownField.among(name[:200], known, f"{within}.")


def _one(value: Array, name: str) -> Any:
    """The only element."""
    if value.size != 1:
        raise InvalidInput(f"inputs.{name}", f"has shape {list(value.shape)}; wants one element, as [1] or [1, 1]")
    return value.reshape(-1)[0]


def _read_texts(texts: Array, parameters: Parameters, text: TextSpec) -> TextRequest:
    if texts.size > MAX_TEXTS:
        raise InvalidInput("inputs.text", f"{texts.size} texts; a request takes at most {MAX_TEXTS}, send several")
    flat: list[str] = texts.reshape(-1).tolist()
    if not parameters:
        return TextRequest(flat)
    return TextRequest(
        flat,
        normalize=_read_choice(parameters, "normalize"),
        truncate=_read_choice(parameters, "truncate") is not False,
        dimensions=read_dimensions(parameters, text),
    )


def _read_choice(parameters: Parameters, name: str) -> bool | None:
    value = parameters.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise InvalidInput(f"parameters.{name}", f"is {describe_value(value)}; wants true or false")


def _describe(declared: Mapping[str, TensorSignature]) -> str:
    return ", ".join(
        f"{each.name}: {each.datatype} {list(each.shape) if each.shape is not None else ''}".rstrip()
        for each in declared.values()
    )
