"""Check what callers send before it is queued: records, ids and query vectors."""

import math
from collections.abc import Sequence

import numpy as np
import orjson

from extensions.search.collections.contract import (
    MAX_ID_BYTES,
    MAX_METADATA_BYTES,
    MAX_METADATA_KEYS,
    MAX_NUMBER,
    CheckedRecords,
)
from frameworks.core.errors import InvalidInput
from frameworks.core.filters import MAX_KEY_CHARACTERS
from frameworks.core.vector_search import MAX_TOP_K, Metadata, Record, Vectors


def checked_records(records: Sequence[Record], dimensions: int) -> CheckedRecords:
    """Return the records, the last one of each id. Raises InvalidInput with the path of the field."""
    last = {record.id: index for index, record in enumerate(records)}
    vectors = np.empty((len(last), dimensions), dtype=np.float32)
    upsert = CheckedRecords([], vectors, [], [], [])
    row = 0
    for index, record in enumerate(records):
        field = f"records[{index}]"
        checked_id(record.id, f"{field}.id")
        vector = _checked_vector(record.vector, dimensions, f"{field}.vector")
        _check_text(record.text, f"{field}.text")
        encoded = _encoded(record.metadata or {}, f"{field}.metadata")
        if last[record.id] == index:
            vectors[row] = vector
            upsert.ids.append(record.id)
            upsert.texts.append(record.text)
            upsert.metadata.append(record.metadata or {})
            upsert.encoded.append(encoded)
            row += 1
    return upsert


def checked_id(value: str, field: str) -> None:
    """Raise InvalidInput if the id is empty, too long, or no valid Unicode."""
    try:
        size = len(value.encode()) if isinstance(value, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= MAX_ID_BYTES or "\0" in value:
        raise InvalidInput(field, f"expected a string of 1 to {MAX_ID_BYTES} bytes without null characters")


def checked_queries(vectors: Vectors, dimensions: int, top_k: int) -> Vectors:
    """Return query vectors as contiguous float32 [n, d]. Raises InvalidInput."""
    if isinstance(top_k, bool) or not isinstance(top_k, int) or not 1 <= top_k <= MAX_TOP_K:
        raise InvalidInput("top_k", f"expected an integer from 1 to {MAX_TOP_K}, got {top_k}")
    if vectors.ndim != 2 or vectors.shape[1] != dimensions:
        size = vectors.shape[-1] if vectors.ndim else 0
        raise InvalidInput("vector", f"expected {dimensions} numbers, got {size}")
    queries = np.ascontiguousarray(vectors, dtype=np.float32)
    _check_numbers(queries, "vector")
    return queries


def _check_numbers(vectors: Vectors, field: str) -> None:
    if not (np.abs(vectors) <= MAX_NUMBER).all():
        raise InvalidInput(field, f"expected numbers from {-MAX_NUMBER:.0e} to {MAX_NUMBER:.0e}, got another")


def _check_text(text: str | None, field: str) -> None:
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(field, "expected valid Unicode, got a lone surrogate") from error


def _checked_vector(vector: Vectors | None, dimensions: int, field: str) -> Vectors:
    if vector is None or vector.shape != (dimensions,):
        size = 0 if vector is None else vector.size
        raise InvalidInput(field, f"expected {dimensions} numbers, got {size}")
    _check_numbers(vector, field)
    return vector


def _encoded(metadata: Metadata, field: str) -> bytes:
    if len(metadata) > MAX_METADATA_KEYS:
        raise InvalidInput(field, f"expected at most {MAX_METADATA_KEYS} keys, got {len(metadata)}")
    for key, value in metadata.items():
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARACTERS or key.startswith("$"):
            raise InvalidInput(
                field, f'expected keys of 1 to {MAX_KEY_CHARACTERS} characters that do not begin with "$"'
            )
        if not _is_value(value):
            raise InvalidInput(
                f"{field}.{key}", "expected a string, a finite number, a boolean, null or a list of strings"
            )
    try:
        encoded = orjson.dumps(metadata)
    except TypeError as error:  # an integer above 64 bits, or no valid Unicode
        raise InvalidInput(field, f"expected JSON, got a value that it cannot hold ({error})") from error
    if len(encoded) > MAX_METADATA_BYTES:
        raise InvalidInput(field, f"expected at most {MAX_METADATA_BYTES} bytes of JSON, got {len(encoded)}")
    return encoded


def _is_value(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
