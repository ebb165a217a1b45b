"""Read the inputs of an /infer body: texts, named tensors, or one tensor in the shape that the model declares."""

from collections.abc import Mapping

import numpy as np

from app.protocols.native.fields import MAX_MIN_VALUE
from app.protocols.native.parameters import read_raw_scores
from app.protocols.shared.fields.model_inputs import describe_inputs, explain_expected_input
from app.protocols.shared.fields.sequences import read_step
from app.protocols.shared.fields.texts import MAX_TEXTS, check_dimensions, check_input_type
from app.protocols.shared.json.body import Document, Node, describe_type, describe_value
from app.protocols.shared.json.shapes import check_shape, reshape_flat
from app.protocols.shared.json.tensors import read_tensor, read_value
from frameworks.core.errors import InvalidInput, UnknownField
from frameworks.types import ModelSpec, TensorBatch, TensorType, TextRequest, Value, Vectors

TASK_OPTIONS = (
    ("normalize", "embed"), ("dimensions", "embed"), ("top_k", "classify"), ("function_to_apply", "classify"),
)  # fmt: skip
"""Options of texts and images, with the task of their models."""
_MAX_SHOWN = 100
_SEQUENCE_FIELDS = ("id", "start", "end")


def read_text(document: Document, fields: dict[str, Node], spec: ModelSpec) -> TextRequest | TensorBatch:
    """Read `text` and its options; of a composite model with other outputs than a text model its only input.

    Raises InvalidInput.
    """
    if spec.text is None and not _reads_text(spec):
        raise InvalidInput("text", explain_expected_input(spec))
    kinds = _read_kinds(document, fields, spec)
    for option, task in TASK_OPTIONS:
        takes_top_k = option == "top_k" and "sparse" in kinds
        if option in fields and spec.task != task and not takes_top_k:
            raise InvalidInput(option, f"expected a model of task {task}, got {spec.task}; leave the option out")
    if "min_value" in fields and "sparse" not in kinds:
        raise InvalidInput("min_value", "expected a model of sparse vectors, got another; leave the option out")
    node = fields["text"]
    texts = document.python(node) if document.is_array(node) else [node]
    if len(texts) > MAX_TEXTS:
        raise InvalidInput("text", f"expected at most {MAX_TEXTS} texts, got {len(texts)}; split the request")
    if set(map(type, texts)) - {str}:
        index = next(i for i, text in enumerate(texts) if type(text) is not str)
        field = f"text[{index}]" if document.is_array(node) else "text"
        raise InvalidInput(field, f"expected a string, got {describe_type(texts[index])}")
    if spec.text is None:
        return _texts_of_composite(texts, fields, spec)
    dimensions = read_count(fields, "dimensions")
    if dimensions is not None and "dense" not in kinds:
        raise InvalidInput("dimensions", "expected none for a model without dense vectors; leave it out")
    return TextRequest(
        texts=texts,
        normalize=read_boolean(fields, "normalize"),
        truncate=read_boolean(fields, "truncate") is not False,
        top_k=read_count(fields, "top_k"),
        dimensions=check_dimensions(dimensions, spec.text),
        raw_scores=read_raw_scores(fields, spec),
        are_queries=_are_queries(fields, spec),
        vectors=("dense", "multi", "sparse"),
        min_value=_read_min_value(fields),
        kinds=kinds if "vectors" in fields else (),
    )


def _read_kinds(document: Document, fields: dict[str, Node], spec: ModelSpec) -> tuple[Vectors, ...]:
    """Return the kinds of vectors that are asked for, by default that of the model. Raises InvalidInput."""
    own = spec.text.kinds if spec.text is not None and spec.task == "embed" else ()
    if "vectors" not in fields:
        return own[:1]
    node = fields["vectors"]
    kinds = document.python(node) if document.is_array(node) else [node]
    if not own:
        raise InvalidInput("vectors", "expected a model that embeds texts, got another; leave the option out")
    if not kinds or not all(isinstance(kind, str) and kind in own for kind in kinds) or len(set(kinds)) != len(kinds):
        raise InvalidInput("vectors", f"expected a list of different kinds out of {', '.join(own)}; correct it")
    return tuple(kinds)


def _read_min_value(fields: dict[str, Node]) -> float:
    """Read `min_value`; 0 where the field is left out. Raises InvalidInput."""
    value: object = fields.get("min_value", 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_MIN_VALUE:
        raise InvalidInput(
            "min_value", f"expected a number from 0 to {MAX_MIN_VALUE:g}, got {describe_value(value)}; correct it"
        )
    return float(value)


def _are_queries(fields: dict[str, Node], spec: ModelSpec) -> bool:
    """Read `input_type`. Raises InvalidInput."""
    if "input_type" not in fields:
        return False
    value = fields["input_type"]
    check_input_type(spec, str(value)[:_MAX_SHOWN])
    if value not in ("query", "document"):
        raise InvalidInput("input_type", f'expected "query" or "document", got {describe_type(value)}; correct it')
    return bool(value == "query")


def _reads_text(spec: ModelSpec) -> bool:
    """Whether the only input of a composite model is texts."""
    sole = spec.sole_input
    is_texts = sole is not None and isinstance(sole.type, TensorType) and sole.type.dtype == "string"
    return spec.is_composite and spec.image is None and is_texts


def _texts_of_composite(texts: list[str], fields: dict[str, Node], spec: ModelSpec) -> TensorBatch:
    assert spec.sole_input is not None
    if "truncate" in fields:
        raise InvalidInput("truncate", f"expected no such option for a {spec.framework}; set it in its steps")
    values = np.empty(len(texts), dtype=object)
    values[:] = texts
    return TensorBatch({spec.sole_input.name: values})


def read_inputs(document: Document, fields: dict[str, Node], spec: ModelSpec) -> TensorBatch:
    """Read `inputs` and `outputs`. Raises InvalidInput, UnknownField."""
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
            raise InvalidInput(
                f"inputs.{declared.name}", f"expected a tensor, got nothing; the model expects {describe_inputs(spec)}"
            )
    return TensorBatch(values, read_output_names(document, fields, spec))


def read_input_data(document: Document, fields: dict[str, Node], spec: ModelSpec) -> tuple[TensorBatch, bool]:
    """Read `input_data` and its options. Returns the batch, and whether the data was a flat list."""
    _refuse_tensors(spec, "input_data")
    sole = spec.sole_input
    if sole is None or not isinstance(sole.type, TensorType):
        raise InvalidInput(
            "input_data", f"expected a model with one required tensor; send inputs: {describe_inputs(spec)}"
        )
    names = read_output_names(document, fields, spec) or spec.first_output
    if len(names) != 1:
        raise InvalidInput("outputs", f"expected one output with input_data, got {len(names)}; name one or send inputs")
    declared = sole.type
    batch_size = read_count(fields, "batch_size")
    if document.is_object(fields["input_data"]):
        raise InvalidInput(
            "input_data", "expected numbers, flat or nested, got an object; send named tensors in inputs"
        )
    tensor, flat = read_tensor(document, fields["input_data"], declared, "input_data")
    if flat and declared.shape is not None:
        tensor = reshape_flat(tensor, declared.shape, batch_size)
    elif batch_size not in (None, tensor.shape[0] if tensor.ndim else 1):
        rows = tensor.shape[0] if tensor.ndim else 1
        raise InvalidInput("batch_size", f"expected {rows}, the rows of input_data, got {batch_size}")
    check_shape(tensor.shape, declared.shape, "input_data")
    return TensorBatch({sole.name: tensor}, names), flat


def with_sequence(batch: TensorBatch, document: Document, fields: dict[str, Node], spec: ModelSpec) -> TensorBatch:
    """Read `sequence`, if the body has it. Raises InvalidInput, UnknownField."""
    if "sequence" not in fields:
        return batch
    node = fields["sequence"]
    if spec.state is None:
        raise InvalidInput("sequence", "expected none for a model without a state, got one; leave it out")
    if not document.is_object(node):
        example = '{"id": 1, "start": true}'
        raise InvalidInput("sequence", f"expected an object like {example}, got {describe_type(node)}")
    members = document.members(node, _SEQUENCE_FIELDS, within="sequence.")
    for name in ("start", "end"):
        if name in members and members[name] is None:
            raise InvalidInput(f"sequence.{name}", "expected true or false, got null; leave it out")
    number, start, end = map(members.get, _SEQUENCE_FIELDS)
    return batch._replace(sequence=read_step(number, start, end, ("sequence.id", "sequence.start", "sequence.end")))


def _refuse_tensors(spec: ModelSpec, input_field: str) -> None:
    if spec.framework == "pytorch" and (spec.image is None or not spec.image.input_name):
        raise InvalidInput(input_field, explain_expected_input(spec))


def read_output_names(document: Document, fields: dict[str, Node], spec: ModelSpec) -> tuple[str, ...] | None:
    """Read `outputs`; None where the field is left out. Raises InvalidInput, UnknownField."""
    if "outputs" not in fields:
        return None
    node = fields["outputs"]
    names = document.python(node) if document.is_array(node) else None
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise InvalidInput("outputs", f"expected a list of different names out of {', '.join(spec.outputs_by_name)}")
    for name in names:
        if name not in spec.outputs_by_name:
            raise UnknownField.among(name[:200], spec.outputs_by_name, within="outputs.")
    return tuple(names)


def read_boolean(fields: Mapping[str, Node], name: str) -> bool | None:
    """Read a boolean; None where the field is left out. Raises InvalidInput."""
    value = fields.get(name)
    if value is None and name not in fields:
        return None
    if isinstance(value, bool):
        return value
    raise InvalidInput(name, f"expected a boolean, got {describe_type(value)}")


def read_count(fields: Mapping[str, Node], name: str) -> int | None:
    """Read an integer of 1 or more; None where the field is left out. Raises InvalidInput."""
    if name not in fields:
        return None
    value = fields[name]
    if type(value) is int and 1 <= value < 2**31:
        return value
    raise InvalidInput(name, f"expected an integer of 1 or more, got {describe_value(value)}")
