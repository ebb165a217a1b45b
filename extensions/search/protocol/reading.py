"""Read the parts of bodies that one pydantic model would read too slowly: vectors, and lists of texts."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import numpy as np

from app.protocols.shared.bodies import Body, read_body
from app.protocols.shared.fields.images import check_num_images, decode_image
from app.protocols.shared.json.body import Document, Node, NonNumericArray, RaggedArray, describe_type, describe_value
from app.protocols.shared.json.reading import read_document
from app.protocols.shared.json.tensors import narrow
from extensions.search.collections.contract import MAX_DIMENSIONS
from frameworks.core.errors import InvalidInput
from frameworks.core.vector_search import Vectors

Options = TypeVar("Options", bound=Body)
Decoded = TypeVar("Decoded")
Fields = dict[str, Node]


class _NotNumbers(InvalidInput):
    """The array holds something else."""


def read_object(body: bytes, kind: type[Body], read: Callable[[Document, Fields], Decoded]) -> Decoded:
    """Parse the body and return the result of `read` for its members, which are those of `kind`.

    Raises InvalidJson, UnknownField, InvalidInput.
    """

    def read_root(document: Document) -> Decoded:
        if not document.is_object(document.root):
            raise InvalidInput("body", f"expected an object, got {describe_type(document.root)}")
        members = document.members(document.root, kind.model_fields)
        return read(document, {name: node for name, node in members.items() if node is not None})

    return read_document(body, read_root)


def read_options(document: Document, fields: Fields, kind: type[Options], by_hand: Collection[str]) -> Options:
    """Validate the members that are not read `by_hand`. Raises InvalidInput."""
    return read_body(kind, {name: document.python(node) for name, node in fields.items() if name not in by_hand})


def read_texts_or_vectors(document: Document, node: Node, field: str, max_items: int) -> list[str] | Vectors:
    """Return a list of strings, or vectors of equal length, float32 [n, dimensions]. Raises InvalidInput."""
    if not document.is_array(node):
        raise InvalidInput(field, f"expected a list of texts or of vectors, got {describe_type(node)}")
    try:
        return read_vectors(document, node, field, max_items)
    except _NotNumbers:
        # Numbers are tried first: a look at the first element would count the array twice.
        items = document.python(node)
        if not isinstance(items[0], str):
            raise
        return _checked_texts(items, field, max_items)


def read_vector_or_vectors(
    document: Document, node: Node, field: str, max_items: int
) -> tuple[list[str] | list[bytes] | Vectors, bool]:
    """Return texts, images or vectors, and whether the array is a list of them. Raises InvalidInput."""
    try:
        values, shape = _numbers(document, node, field)
    except _NotNumbers:
        items = document.items(node)
        if document.is_object(items[0]):
            check_num_images(len(items), field)
            return [_image_of(document, each, f"{field}[{index}]") for index, each in enumerate(items)], True
        if isinstance(items[0], str):
            return _checked_texts(items, field, max_items), True
        raise
    if len(shape) > 2 or 0 in shape:
        raise InvalidInput(field, "expected a vector or a list of vectors, got other lists")
    if len(shape) == 2 and shape[0] > max_items:
        raise InvalidInput(field, f"expected 1 to {max_items} vectors, got {shape[0]}")
    _check_dimensions(shape[-1], field)
    return values.reshape(-1, shape[-1]), len(shape) == 2


def _image_of(document: Document, node: Node, field: str) -> bytes:
    if not document.is_object(node):
        raise InvalidInput(field, f"expected an object with image as the others, got {describe_type(node)}")
    return read_image_object(document, node, field)


def _checked_texts(texts: list[Any], field: str, max_texts: int) -> list[str]:
    if not 1 <= len(texts) <= max_texts:
        raise InvalidInput(field, f"expected 1 to {max_texts} texts, got {len(texts)}")
    if set(map(type, texts)) != {str}:
        index, wrong = next((i, text) for i, text in enumerate(texts) if type(text) is not str)
        raise InvalidInput(f"{field}[{index}]", f"expected a string as the others, got {describe_type(wrong)}")
    return texts


def read_vectors(document: Document, node: Node, field: str, max_vectors: int) -> Vectors:
    """Return 1 to `max_vectors` vectors of equal length, float32 [n, dimensions]. Raises InvalidInput."""
    values, shape = _numbers(document, node, field)
    if len(shape) != 2:
        raise InvalidInput(field, f"expected a list of vectors, got {len(shape)} levels of lists")
    if not 1 <= shape[0] <= max_vectors:
        raise InvalidInput(field, f"expected 1 to {max_vectors} vectors, got {shape[0]}")
    _check_dimensions(shape[1], field)
    return values.reshape(shape)


def read_vector(document: Document, node: Node, field: str) -> Vectors:
    """Return one vector, float32 [dimensions]. Raises InvalidInput."""
    values, shape = _numbers(document, node, field)
    if len(shape) != 1:
        raise InvalidInput(field, "expected a list of numbers, got a list of lists; send one vector")
    _check_dimensions(shape[0], field)
    return values


def _numbers(document: Document, node: Node, field: str) -> tuple[Vectors, tuple[int, ...]]:
    if not document.is_array(node):
        raise InvalidInput(field, f"expected numbers in lists, got {describe_value(node)}")
    try:
        values, shape = document.numbers(node, "float")
    except RaggedArray as error:
        raise InvalidInput(field, f"expected vectors of equal length, got a ragged array: {error}") from None
    except NonNumericArray as error:
        raise _NotNumbers(field, f"expected numbers, got {error}") from None
    return narrow(values, "float32", field).astype(np.float32, copy=False), shape


def _check_dimensions(dimensions: int, field: str) -> None:
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise InvalidInput(field, f"expected vectors of 1 to {MAX_DIMENSIONS} numbers, got {dimensions}")


def read_image_object(document: Document, node: Node, field: str) -> bytes:
    """Return the file in an object that has only `image`. Raises InvalidInput, UnknownField."""
    return read_image(document.members(node, ("image",), f"{field}."), field)


def read_image(members: Mapping[str, Node], field: str) -> bytes:
    """Return the file in the member `image`. Raises InvalidInput."""
    if "image" not in members:
        raise InvalidInput(f"{field}.image", "expected an image as base64 or data URL, got nothing")
    return decode_image(members["image"], f"{field}.image")
