"""The codecs of /infer for bodies that are no JSON: one file of an image, sound or video, or a form with such files.

The options of one file are in the query of the URL, those of a form in its other parts.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any
from urllib.parse import parse_qsl

from app.inference.contract import NamedRequest, no_timeout_ms
from app.protocols.native.codec import NativeCodec, NativeRequest, name_and_version, read_priority
from app.protocols.native.fields import FILE_INPUTS
from app.protocols.native.images import FIELD, read_files, read_options
from app.protocols.native.inputs import read_count
from app.protocols.native.multipart import read_boundary, read_form
from app.protocols.native.tasks import read_task_files
from app.protocols.shared.codec import Header, Target, check_content_type
from app.protocols.shared.errors import UnsupportedMediaType
from app.protocols.shared.fields.images import MEDIA_TYPES
from app.protocols.shared.fields.model_inputs import explain_expected_input
from frameworks.core.errors import InvalidInput
from frameworks.images.spec import ImageRequest
from frameworks.tasks.types import TaskRequest
from frameworks.types import ModelSpec

MULTIPART = b"multipart/form-data"

_MAX_QUERY_FIELDS = 64
# A form is searched for its boundaries, and its files are copied.
_LONG_FORM_BYTES = 1024 * 1024
_MAX_CACHED_TYPES = 64


class FileCodec(NativeCodec):
    """The Codec of a body that is one file. Its options are in the query."""

    __slots__ = ("_field", "_query")

    def __init__(self, query: bytes = b"", field: str = FIELD) -> None:
        """`field`: of the file; empty where the model decides."""
        self._field = field
        self._query = query

    def with_query(self, query: bytes) -> "FileCodec":
        """Return the codec of a request with this query."""
        return FileCodec(query, self._field)

    def is_long_to_read(self, body: bytes) -> bool:
        return False

    def read(self, body: bytes, target: Target) -> NamedRequest:
        """Read the query. Raises InvalidInput, UnknownField."""
        options = read_options(_pairs(self._query), "query") if self._query else {}
        return _named(self._field, [bytes(body)], options, target)


class FormCodec(NativeCodec):
    """The Codec of a body of `multipart/form-data`."""

    __slots__ = ("_boundary",)

    def __init__(self, boundary: bytes) -> None:
        self._boundary = boundary

    def is_long_to_read(self, body: bytes) -> bool:
        return len(body) >= _LONG_FORM_BYTES

    def read(self, body: bytes, target: Target) -> NamedRequest:
        """Read the parts. Raises InvalidInput, UnknownField."""
        form = read_form(body, self._boundary)
        return _named(form.field, form.files, read_options(form.options, "form"), target)


class AnyCodec(NativeCodec):
    """The Codec of a path before the headers tell the kind of body."""

    __slots__ = ()

    def for_head(self, headers: Sequence[Header], query: bytes) -> NativeCodec:
        """Raises UnsupportedMediaType; InvalidInput also for a query beside a form, which holds all options."""
        codec: NativeCodec = self
        for name, value in headers:
            if name == b"content-type":
                codec = _codec_of(value)
        if query and isinstance(codec, FileCodec):
            return codec.with_query(query)
        if query and isinstance(codec, FormCodec):
            raise InvalidInput("query", "expected no query beside a form, got one; send the options as parts of it")
        return codec


CODEC = AnyCodec()
_FILE_CODECS = {b"image/": FileCodec(), b"audio/": FileCodec(field="audio"), b"video/": FileCodec(field="video")}
_ANY_FILE = FileCodec(field="")


# A client sends the same content-type with every image, and another boundary with every form.
@lru_cache(maxsize=_MAX_CACHED_TYPES)
def _codec_of(content_type: bytes) -> NativeCodec:
    """Return the codec of a body. Raises UnsupportedMediaType, InvalidInput."""
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == MULTIPART:
        return FormCodec(read_boundary(content_type))
    if media_type == b"application/octet-stream":
        return _ANY_FILE
    codec = _FILE_CODECS.get(media_type[: len(b"image/")])
    if codec is None:
        check_content_type(content_type)
        return CODEC
    if media_type.startswith(b"image/") and media_type.decode("latin-1") not in MEDIA_TYPES:
        given = media_type.decode("latin-1")[:100]
        raise UnsupportedMediaType(f'content-type: expected {", ".join(MEDIA_TYPES)}, got "{given}"; convert the image')
    return codec


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            query.decode("latin-1"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_QUERY_FIELDS
        )
    except ValueError as error:
        raise InvalidInput("query", f"expected options like top_k=3 in UTF-8, got other text ({error})") from None


def _named(field: str, files: list[bytes], options: Mapping[str, Any], target: Target) -> NamedRequest:
    name, version = name_and_version(options, target)
    read_timeout_ms = partial(read_count, options, "timeout_ms") if options else no_timeout_ms
    return NamedRequest(name, version, partial(_decode, field, files, options), read_timeout_ms)


def _decode(field: str, files: list[bytes], options: Mapping[str, Any], spec: ModelSpec) -> NativeRequest:
    request: ImageRequest | TaskRequest
    if spec.pipeline is not None:
        kinds = [kind for kind in spec.pipeline.inputs if kind in FILE_INPUTS]
        request = read_task_files(field or (*kinds, FIELD)[0], files, options, spec)
    elif field not in ("", FIELD):
        raise InvalidInput(field, f"expected a model that reads {field}, got another; {explain_expected_input(spec)}")
    else:
        request = read_files(files, options, spec)
    if not options:
        return NativeRequest(FIELD, request, spec)
    priority, timeout_ms = read_priority(options), read_count(options, "timeout_ms")
    return NativeRequest(FIELD, request, spec, priority=priority, timeout_ms=timeout_ms)
