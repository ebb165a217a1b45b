"""What each question of a body holds: texts, named tensors, or one tensor in the shape that the model declares."""

import numpy as np

from app.protocols.json_body import Document, Node, describe_type, describe_value
from app.protocols.json_tensors import read_tensor, read_value
from app.protocols.model_inputs import describe_inputs, explain_expected_input
from app.protocols.shapes import check_shape, reshape_flat
from app.protocols.text_fields import MAX_TEXTS
from frameworks.errors import InvalidInput, UnknownField
from frameworks.types import ModelSpec, TensorBatch, TensorType, TextRequest, Value


def read_text(document: Document, fields: dict[str, Node], spec: ModelSpec) -> TextRequest:
    """`text` and its options. Raises InvalidInput."""
    if spec.text is None:
        raise InvalidInput("text", explain_expected_input(spec))
    for option, task in (("normalize", "embed"), ("top_k", "classify")):
        if option in fields and spec.task != task:
            raise InvalidInput(option, f"goes with {task} models; this one's task is {spec.task}")
    node = fields["text"]
    texts = document.python(node) if document.is_array(node) else [node]
    if len(texts) > MAX_TEXTS:
        raise InvalidInput("text", f"{len(texts)} texts; a request takes at most {MAX_TEXTS}, send several")
    if strangers := set(map(type, texts)) - {str}:
        at = next(i for i, text in enumerate(texts) if type(text) in strangers)
        raise InvalidInput(
            f"text[{at}]" if document.is_array(node) else "text", f"is {describe_type(texts[at])}; wants a string"
        )
    return TextRequest(
        texts=texts,
        normalize=_boolean(fields, "normalize"),
        truncate=_boolean(fields, "truncate") is not False,
        top_k=read_count(fields, "top_k"),
    )


def read_inputs(document: Document, fields: dict[str, Node], spec: ModelSpec) -> TensorBatch:
    """`inputs` and its options. Raises InvalidInput, UnknownField."""
    _refuse_tensors(spec, "inputs")
    node = fields["inputs"]
    if not document.is_object(node):
        raise InvalidInput(
            "inputs",
            f"expected an object of name → array, got {describe_type(node)}; the inputs are {describe_inputs(spec)}",
        )
    members = document.members(node, spec.inputs_by_name, within="inputs.")
    values: dict[str, Value] = {}
    for declared in spec.inputs:
        if declared.name in members:
            field = f"inputs.{declared.name}"
            value = read_value(document, members[declared.name], declared.type, field)
            if isinstance(value, np.ndarray):
                check_shape(value.shape, declared.shape, field)
            values[declared.name] = value
        elif declared.required:
            raise InvalidInput(f"inputs.{declared.name}", f"is missing; the model wants {describe_inputs(spec)}")
    return TensorBatch(values, _output_names(document, fields, spec))


def read_input_data(document: Document, fields: dict[str, Node], spec: ModelSpec) -> tuple[TensorBatch, bool]:
    """The batch, and whether it came as a flat list."""
    _refuse_tensors(spec, "input_data")
    sole = spec.sole_input
    if sole is None or not isinstance(sole.type, TensorType):
        raise InvalidInput(
            "input_data", f"fits a model with exactly one required tensor; send inputs: {describe_inputs(spec)}"
        )
    names = _output_names(document, fields, spec) or spec.first_output
    if len(names) != 1:
        raise InvalidInput("outputs", "input_data is answered with one output; name one, or send inputs instead")
    wanted = sole.type
    batch_size = read_count(fields, "batch_size")
    if document.is_object(fields["input_data"]):
        raise InvalidInput("input_data", "is an object; wants numbers, flat or nested (named tensors go in inputs)")
    tensor, flat = read_tensor(document, fields["input_data"], wanted, "input_data")
    if flat and wanted.shape is not None:
        tensor = reshape_flat(tensor, wanted.shape, batch_size)
    elif batch_size not in (None, tensor.shape[0] if tensor.ndim else 1):
        raise InvalidInput(
            "batch_size", f"is {batch_size}, and input_data has {tensor.shape[0] if tensor.ndim else 1} rows"
        )
    check_shape(tensor.shape, wanted.shape, "input_data")
    return TensorBatch({sole.name: tensor}, names), flat


def _refuse_tensors(spec: ModelSpec, question: str) -> None:
    if spec.framework == "pytorch":
        raise InvalidInput(question, explain_expected_input(spec))


def _output_names(document: Document, fields: dict[str, Node], spec: ModelSpec) -> tuple[str, ...] | None:
    if "outputs" not in fields:
        return None
    node = fields["outputs"]
    names = document.python(node) if document.is_array(node) else None
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise InvalidInput("outputs", f"wants a list of different names out of {', '.join(spec.outputs_by_name)}")
    for name in names:
        if name not in spec.outputs_by_name:
            raise UnknownField.among(name[:200], spec.outputs_by_name, within="outputs.")
    return tuple(names)


def _boolean(fields: dict[str, Node], name: str) -> bool | None:
    value = fields.get(name)
    if value is None and name not in fields:
        return None
    if isinstance(value, bool):
        return value
    raise InvalidInput(name, f"is {describe_type(value)}; wants true or false")


def read_count(fields: dict[str, Node], name: str) -> int | None:
    """A whole number of 1 or more; None where the field is left out. Raises InvalidInput."""
    if name not in fields:
        return None
    value = fields[name]
    if type(value) is int and 1 <= value < 2**31:
        return value
    raise InvalidInput(name, f"is {describe_value(value)}; wants a whole number of 1 or more")
