"""The codecs of /infer for bodies that are no JSON: one image, or a form with images.

The options of one image are in the query of the URL, those of a form in its other parts.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Self
from urllib.parse import parse_qsl

from app.inference.pipeline import FindSpec
from app.protocols.native.codec import NativeCodec, NativeRequest, name_and_version, read_priority
from app.protocols.native.images import FIELD, read_files, read_options
from app.protocols.native.inputs import read_count
from app.protocols.native.multipart import read_boundary, read_form
from app.protocols.shared.codec import JSON_HEADER, Header, Target, check_content_type
from app.protocols.shared.errors import UnsupportedMediaType
from app.protocols.shared.fields.images import MEDIA_TYPES
from frameworks.core.errors import InvalidInput

MULTIPART = b"multipart/form-data"

_MAX_QUERY_FIELDS = 64
# A form is searched for its boundaries, and its files are copied.
_LONG_FORM_BYTES = 1024 * 1024
_MAX_CACHED_TYPES = 64


class FileCodec(NativeCodec):
    """The Codec of a body that is one image. Its options are in the query."""

    __slots__ = ("_query",)

    reads_query = True

    def __init__(self, query: bytes = b"") -> None:
        self._query = query

    def for_query(self, query: bytes) -> "FileCodec":
        return FileCodec(query) if query else self

    def is_long_to_read(self, body: bytes) -> bool:
        return False

    def decode(self, body: bytes, target: Target, find_spec: FindSpec) -> NativeRequest:
        """Decode the file and the query. Raises InvalidInput, UnknownField, and the errors of `find_spec`."""
        options = read_options(_pairs(self._query), "query") if self._query else {}
        return _decode([bytes(body)], options, target, find_spec)


class FormCodec(NativeCodec):
    """The Codec of a body of `multipart/form-data`."""

    __slots__ = ("_boundary",)

    reads_query = True

    def __init__(self, boundary: bytes) -> None:
        self._boundary = boundary

    def for_query(self, query: bytes) -> Self:
        """Raises InvalidInput: a form holds all options."""
        if query:
            raise InvalidInput("query", "expected no query beside a form, got one; send the options as parts of it")
        return self

    def is_long_to_read(self, body: bytes) -> bool:
        return len(body) >= _LONG_FORM_BYTES

    def decode(self, body: bytes, target: Target, find_spec: FindSpec) -> NativeRequest:
        """Decode the parts. Raises InvalidInput, UnknownField, and the errors of `find_spec`."""
        form = read_form(body, self._boundary)
        return _decode(form.files, read_options(form.options, "form"), target, find_spec)


class AnyCodec(NativeCodec):
    """The Codec of a path before the headers tell the kind of body."""

    __slots__ = ()

    def for_headers(self, headers: Sequence[Header]) -> NativeCodec:
        """Raises UnsupportedMediaType, InvalidInput."""
        for header in headers:
            # As in JsonCodec: the usual header is accepted without a call.
            if header[0] == b"content-type" and header != JSON_HEADER:
                return _codec_for(header[1])
        return self


CODEC = AnyCodec()
_ONE_FILE = FileCodec()


# A client sends the same content-type with every image, and another boundary with every form.
@lru_cache(maxsize=_MAX_CACHED_TYPES)
def _codec_of(content_type: bytes) -> NativeCodec | None:
    """Return the codec of a body with images; None for any other. Raises UnsupportedMediaType, InvalidInput."""
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == MULTIPART:
        return FormCodec(read_boundary(content_type))
    if not media_type.startswith(b"image/"):
        return None
    if media_type.decode("latin-1") not in MEDIA_TYPES:
        given = media_type.decode("latin-1")[:100]
        raise UnsupportedMediaType(f'content-type: expected {", ".join(MEDIA_TYPES)}, got "{given}"; convert the image')
    return _ONE_FILE


def _codec_for(content_type: bytes) -> NativeCodec:
    """Return the codec for a content-type that is not the usual one. Raises UnsupportedMediaType, InvalidInput."""
    codec = _codec_of(content_type)
    if codec is None:
        check_content_type(content_type)
    return CODEC if codec is None else codec


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            query.decode("latin-1"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_QUERY_FIELDS
        )
    except ValueError as error:
        raise InvalidInput("query", f"expected options like top_k=3 in UTF-8, got other text ({error})") from None


def _decode(files: list[bytes], options: Mapping[str, Any], target: Target, find_spec: FindSpec) -> NativeRequest:
    spec = find_spec(*name_and_version(options, target), lambda: read_count(options, "timeout_ms"))
    request = read_files(files, options, spec)
    if not options:
        return NativeRequest(FIELD, request, spec)
    priority, timeout_ms = read_priority(options), read_count(options, "timeout_ms")
    return NativeRequest(FIELD, request, spec, priority=priority, timeout_ms=timeout_ms)
