"""Read requests for images: the field `image` of an /infer body, or files with their options as text."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from app.protocols.native.fields import COMMON_FIELDS, OPTIONS, PARAMETERS
from app.protocols.native.inputs import TASK_OPTIONS, read_boolean, read_count, read_output_names
from app.protocols.native.parameters import in_parameters, merge_parameters_of_files, read_raw_scores
from app.protocols.shared.fields.images import (
    check_num_images,
    check_reads_images,
    check_vector_size,
    decode_images,
    vectors_of_images,
)
from app.protocols.shared.json.body import Document, Node
from frameworks.core.errors import MAX_SHOWN_CHARACTERS, InvalidInput, UnknownField
from frameworks.images.spec import ImageRequest
from frameworks.types import ModelSpec

FIELD: Literal["image"] = "image"
FILE_OPTIONS = COMMON_FIELDS | OPTIONS[FIELD] | {PARAMETERS, "text"}
"""The options of a request whose body is a file, or a form with files."""

_COUNTS = frozenset({"priority", "timeout_ms", "top_k", "dimensions"})
_FLAGS = frozenset({"normalize", "stream", "ignore_eos"})
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_MAX_DIGITS = 10


def read_images(document: Document, fields: dict[str, Node], spec: ModelSpec) -> ImageRequest:
    """Read `image` and its options. Raises InvalidInput, UnknownField."""
    check_reads_images(spec, FIELD)
    node = fields[FIELD]
    is_list = document.is_array(node)
    names = None
    if "outputs" in fields:
        _check_tensor_task(spec)
        names = read_output_names(document, fields, spec)
    images = decode_images(document.python(node) if is_list else [node], FIELD, is_list)
    return _build(images, fields, spec, names)


def read_files(files: Sequence[bytes], options: Mapping[str, Any], spec: ModelSpec) -> ImageRequest:
    """Build the request for files. `options`: as `read_options` returns them. Raises InvalidInput, UnknownField."""
    check_reads_images(spec, FIELD)
    if len(files) != 1:
        check_num_images(len(files), FIELD)
    if b"" in files:
        field = f"{FIELD}[{files.index(b'')}]" if len(files) > 1 else FIELD
        raise InvalidInput(field, "expected a file, got an empty one")
    names = options.get("outputs")
    if names is not None:
        _check_tensor_task(spec)
        for name in names:
            if name not in spec.outputs_by_name:
                raise UnknownField.among(name[:MAX_SHOWN_CHARACTERS], spec.outputs_by_name, within="outputs.")
    if "text" in options:
        raise InvalidInput("text", f"expected none for a model of task {spec.task}; leave it out")
    if PARAMETERS in options:
        options, own = merge_parameters_of_files(options)
        try:
            return _build(list(files), options, spec, names)
        except InvalidInput as error:
            raise in_parameters(error, own) from None
    return _build(list(files), options, spec, names)


def read_options(given: Sequence[tuple[str, str]], place: str) -> dict[str, Any]:
    """Convert options that arrived as text: of a query or of a form. `place`: for the message of an unknown one.

    `outputs` may be repeated, or separated by commas. Raises InvalidInput, UnknownField.
    """
    options: dict[str, Any] = {}
    for name, text in given:
        if name not in FILE_OPTIONS:
            raise UnknownField.among(name[:MAX_SHOWN_CHARACTERS], FILE_OPTIONS, within=f"{place}.")
        if name == "outputs":
            options[name] = tuple(dict.fromkeys((*options.get(name, ()), *text.split(","))))
        elif name in options:
            raise InvalidInput(name, "expected one value, got several; send one")
        else:
            options[name] = convert_text(name, text)
    return options


def convert_text(name: str, text: str) -> Any:
    """Return the value of an option that arrived as text. Raises InvalidInput."""
    if name in _COUNTS:
        if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
            raise InvalidInput(name, f'expected an integer of 1 or more, got "{text[:MAX_SHOWN_CHARACTERS]}"')
        return int(text)
    if name in _FLAGS:
        value = _BOOLEANS.get(text.lower())
        if value is None:
            raise InvalidInput(name, f'expected true or false, got "{text[:MAX_SHOWN_CHARACTERS]}"')
        return value
    return text


def _build(
    images: list[bytes], options: Mapping[str, Any], spec: ModelSpec, names: tuple[str, ...] | None
) -> ImageRequest:
    if not options:
        return ImageRequest(images, vectors=vectors_of_images(spec))
    for option, task in TASK_OPTIONS:
        if option in options and spec.task != task:
            raise InvalidInput(option, f"expected a model of task {task}, got {spec.task}; leave the option out")
    check_vector_size(read_count(options, "dimensions"), spec)
    return ImageRequest(
        images,
        read_boolean(options, "normalize"),
        top_k=read_count(options, "top_k"),
        raw_scores=read_raw_scores(options, spec),
        output_names=names,
        vectors=vectors_of_images(spec),
    )


def _check_tensor_task(spec: ModelSpec) -> None:
    if spec.task != "tensor":
        raise InvalidInput("outputs", f"expected a model of task tensor, got {spec.task}; leave the option out")
