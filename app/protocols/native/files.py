"""The codecs of /infer for bodies that are no JSON: one image, audio or video file, or a form with files.

The options of one file are in the query of the URL, those of a form in its other parts.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, cast
from urllib.parse import parse_qsl

from app.inference.contract import NamedRequest, no_timeout_ms
from app.protocols.native.codec import NativeCodec, NativeRequest, name_and_version, read_priority
from app.protocols.native.form_generation import decode_generation, is_generation, read_generation_options
from app.protocols.native.images import FIELD, read_files, read_options
from app.protocols.native.inputs import read_count
from app.protocols.native.multipart import RULES
from app.protocols.native.tasks import read_task_files
from app.protocols.shared.codec import Header, Target, check_content_type
from app.protocols.shared.errors import UnsupportedMediaType
from app.protocols.shared.fields.images import MEDIA_TYPES
from app.protocols.shared.fields.media import FIELDS, check_reads
from app.protocols.shared.forms import LONG_FORM_BYTES, MULTIPART, read_boundary, read_form
from frameworks.core.errors import InvalidInput
from frameworks.images.spec import ImageRequest
from frameworks.media.kinds import MEDIA_TYPES as FILE_MEDIA_TYPES
from frameworks.media.kinds import Kind, kind_of
from frameworks.tasks.types import TaskRequest
from frameworks.types import ModelSpec

OCTET_STREAM = b"application/octet-stream"

_MAX_QUERY_FIELDS = 64
_MAX_CACHED_TYPES = 64
# The first bytes that tell the kind of a file.
_READ_BYTES = 512


class FileCodec(NativeCodec):
    """The Codec of a body that is one file of a kind. Its options are in the query."""

    __slots__ = ("_kind", "_query")

    def __init__(self, kind: Kind = FIELD, query: bytes = b"") -> None:
        self._kind: Kind = kind
        self._query = query

    def with_query(self, query: bytes) -> "FileCodec":
        return FileCodec(self._kind, query) if query else self

    def is_long_to_read(self, body: bytes) -> bool:
        return False

    def read(self, body: bytes, target: Target) -> NamedRequest:
        """Read the query. Raises InvalidInput, UnknownField."""
        options = read_options(_pairs(self._query), "query") if self._query else {}
        return _named(partial(_decode, [bytes(body)], self._kind, options), options, target)


class UntypedCodec(NativeCodec):
    """The Codec of a body whose type says nothing: its first bytes tell.

    `is_binary`: application/octet-stream; else the type is missing, and other bytes are refused as JSON.
    """

    __slots__ = ("_is_binary", "_query")

    def __init__(self, is_binary: bool, query: bytes = b"") -> None:
        self._is_binary = is_binary
        self._query = query

    def with_query(self, query: bytes) -> "UntypedCodec":
        return UntypedCodec(self._is_binary, query) if query else self

    def is_long_to_read(self, body: bytes) -> bool:
        return kind_of(body[:_READ_BYTES]) is None and super().is_long_to_read(body)

    def read(self, body: bytes, target: Target) -> NamedRequest:
        """Read the body as the file or the JSON that it is. Raises also UnsupportedMediaType for other bytes."""
        start = bytes(body[:_READ_BYTES])
        kind = kind_of(start)
        if kind is not None:
            return FileCodec(kind, self._query).read(body, target)
        if self._is_binary and not start.lstrip().startswith((b"{", b"[")):
            raise UnsupportedMediaType(
                "content-type: expected an image, audio, video or JSON, got other bytes as application/octet-stream; "
                "name the type of the body"
            )
        return super().read(body, target)


class FormCodec(NativeCodec):
    """The Codec of a body of `multipart/form-data`."""

    __slots__ = ("_boundary",)

    def __init__(self, boundary: bytes) -> None:
        self._boundary = boundary

    def is_long_to_read(self, body: bytes) -> bool:
        if len(body) >= LONG_FORM_BYTES:
            return True
        # Prompts and messages are JSON or text; a file alone is only copied.
        return super().is_long_to_read(body) and (b"prompt" in body or b"messages" in body)

    def read(self, body: bytes, target: Target) -> NamedRequest:
        """Read the parts. Raises InvalidInput, UnknownField."""
        form = read_form(body, self._boundary, RULES)
        if is_generation(form.field, {name for name, _ in form.options}):
            options = read_generation_options(form.options, form.field, bool(form.files))
            return _named(partial(decode_generation, form.files, options), options, target)
        options = read_options(form.options, "form")
        return _named(partial(_decode, form.files, cast("Kind", form.field), options), options, target)


class AnyCodec(NativeCodec):
    """The Codec of a path before the headers tell the kind of body."""

    __slots__ = ()

    def for_head(self, headers: Sequence[Header], query: bytes) -> NativeCodec:
        """Raises UnsupportedMediaType; InvalidInput also for a query beside a form, which holds all options."""
        codec: NativeCodec = _WITHOUT_TYPE
        for name, value in headers:
            if name == b"content-type":
                codec = _codec_of(value)
        if query and isinstance(codec, (FileCodec, UntypedCodec)):
            return codec.with_query(query)
        if query and isinstance(codec, FormCodec):
            raise InvalidInput("query", "expected no query beside a form, got one; send the options as parts of it")
        return codec


CODEC = AnyCodec()
_ONE_FILE: dict[Kind, FileCodec] = {kind: FileCodec(kind) for kind in FIELDS}
_WITHOUT_TYPE, _BINARY = UntypedCodec(is_binary=False), UntypedCodec(is_binary=True)


# A client sends the same content-type with every image, and another boundary with every form.
@lru_cache(maxsize=_MAX_CACHED_TYPES)
def _codec_of(content_type: bytes) -> NativeCodec:
    """Return the codec of a body. Raises UnsupportedMediaType, InvalidInput."""
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == MULTIPART:
        return FormCodec(read_boundary(content_type))
    if media_type == OCTET_STREAM:
        return _BINARY
    given = media_type.decode("latin-1")
    kind = next((each for each in FIELDS if given.startswith(f"{each}/")), None)
    if kind is None:
        check_content_type(content_type)
        return CODEC
    known = MEDIA_TYPES if kind == FIELD else FILE_MEDIA_TYPES[kind]
    if given not in known:
        raise UnsupportedMediaType(
            f'content-type: expected {", ".join(known)}, got "{given[:100]}"; convert the {kind}'
        )
    return _ONE_FILE[kind]


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            query.decode("latin-1"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_QUERY_FIELDS
        )
    except ValueError as error:
        raise InvalidInput("query", f"expected options like top_k=3 in UTF-8, got other text ({error})") from None


def _named(decode: Callable[[ModelSpec], NativeRequest], options: Mapping[str, Any], target: Target) -> NamedRequest:
    name, version = name_and_version(options, target)
    read_timeout_ms = partial(read_count, options, "timeout_ms") if options else no_timeout_ms
    return NamedRequest(name, version, decode, read_timeout_ms)


def _decode(files: list[bytes], kind: Kind, options: Mapping[str, Any], spec: ModelSpec) -> NativeRequest:
    request: ImageRequest | TaskRequest
    if spec.pipeline is not None:
        # A container with a video may be read for its sound.
        field = "audio" if kind == "video" and "video" not in spec.pipeline.inputs else kind
        request = read_task_files(field, files, options, spec)
    else:
        check_reads(spec, kind, kind)
        request = read_files(files, options, spec)
    if not options:
        return NativeRequest(kind, request, spec)
    priority, timeout_ms = read_priority(options), read_count(options, "timeout_ms")
    return NativeRequest(kind, request, spec, priority=priority, timeout_ms=timeout_ms)
