"""Read bodies of `multipart/form-data` (RFC 7578) within bounds: files of one field, and texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Annotated, NamedTuple

from pydantic import WithJsonSchema
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from frameworks.core.errors import MAX_SHOWN_CHARACTERS, InvalidInput, UnknownField

MULTIPART = b"multipart/form-data"
FileUpload = Annotated[bytes, WithJsonSchema({"type": "string", "format": "binary"})]
"""The field of a form that holds a file."""
LONG_FORM_BYTES = 1024 * 1024
"""From this size on a form is read on a thread: it is searched for its boundaries, and its files are copied."""
MAX_HEADERS = 8
MAX_HEADER_BYTES = 4096
"""Of the headers of one part together."""
MAX_TEXT_BYTES = 4096
"""Of the value of one option."""

_MAX_OPTIONS = 64
_MAX_BOUNDARY_BYTES = 256
_PLAIN_ENCODINGS = (b"", b"7bit", b"8bit", b"binary")


class Form(NamedTuple):
    """The parts of a form. `files`: those of `field`, in order. `options`: names and texts of the others."""

    files: list[bytes]
    options: list[tuple[str, str]]
    field: str


@dataclass(frozen=True, slots=True)
class FormRules:
    """The parts that a form may have. `max_files`: of each field that holds files; a form has those of one field.
    `options`: the names of texts. `max_bytes`: of a text that may exceed MAX_TEXT_BYTES. `field`: that of a form
    without files. `kinds`: plural names of files, for errors.
    """

    max_files: Mapping[str, int]
    options: frozenset[str]
    field: str
    max_bytes: Mapping[str, int] = dataclass_field(default_factory=dict)
    kinds: Mapping[str, str] = dataclass_field(default_factory=dict)


def read_boundary(content_type: bytes) -> bytes:
    """Return the boundary of a content-type. Raises InvalidInput."""
    _, parameters = parse_options_header(content_type)
    boundary = parameters.get(b"boundary", b"")
    if not 1 <= len(boundary) <= _MAX_BOUNDARY_BYTES:
        raise InvalidInput(
            "content-type",
            f"expected a boundary of 1 to {_MAX_BOUNDARY_BYTES} bytes, got {len(boundary)}; let the client library "
            "write the header",
        )
    return boundary


def read_form(body: bytes, boundary: bytes, rules: FormRules) -> Form:
    """Parse a whole body. Raises InvalidInput, UnknownField for a part with an unknown name."""
    reader = _FormReader(body, rules)
    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": reader.begin_part,
                "on_header_field": reader.add_name,
                "on_header_value": reader.add_value,
                "on_header_end": reader.end_header,
                "on_headers_finished": reader.end_headers,
                "on_part_data": reader.add_data,
                "on_part_end": reader.end_part,
                "on_end": reader.end,
            },
            max_header_count=MAX_HEADERS,
            max_header_size=MAX_HEADER_BYTES,
        )
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise InvalidInput("body", f"expected parts of multipart/form-data, got other bytes: {error}") from None
    if not reader.is_complete:
        raise InvalidInput("body", "expected the boundary that ends the form, got the end of the body; send all of it")
    return Form(reader.files, reader.options, reader.field or rules.field)


class _FormReader:
    """Collects the parts of one body. The callbacks get the whole body each time, and a place in it."""

    def __init__(self, body: bytes, rules: FormRules) -> None:
        self._body = body
        self._rules = rules
        self.files: list[bytes] = []
        self.options: list[tuple[str, str]] = []
        self.field: str | None = None
        """That of the files; None before the first one."""
        self.is_complete = False
        self.begin_part()

    def begin_part(self) -> None:
        self._header_name = self._header_value = b""
        self._disposition = b""
        self._name = ""
        self._pieces: list[bytes] = []
        self._size = 0

    def add_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def add_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def end_header(self) -> None:
        name, value = self._header_name.lower(), self._header_value
        self._header_name = self._header_value = b""
        if name == b"content-disposition":
            self._disposition = value
        elif name == b"content-transfer-encoding" and value.strip().lower() not in _PLAIN_ENCODINGS:
            raise InvalidInput(
                "content-transfer-encoding", f'expected binary, got "{_shown(value)}"; send the bytes of the file'
            )

    def end_headers(self) -> None:
        form_data, parameters = parse_options_header(self._disposition)
        name = parameters.get(b"name")
        if form_data != b"form-data" or name is None:
            raise InvalidInput(
                "content-disposition", f'expected form-data with a name, got "{_shown(self._disposition)}"'
            )
        self._name = name.decode("utf-8", "replace")
        field, rules = self._name, self._rules
        most = rules.max_files.get(field)
        if most is not None:
            if self.field not in (None, field):
                raise InvalidInput(
                    field, f"expected files of one field, got {self.field} too; send one request for each"
                )
            self.field = field
            if len(self.files) >= most:
                what = rules.kinds.get(field, f"files of {field}")
                raise InvalidInput(field, f"expected at most {most} {what}, got more; split the request")
        elif field not in rules.options:
            raise UnknownField.among(field[:MAX_SHOWN_CHARACTERS], {*rules.max_files, *rules.options})
        elif len(self.options) >= _MAX_OPTIONS:
            raise InvalidInput("body", f"expected at most {_MAX_OPTIONS} parts besides files, got more")

    def add_data(self, data: bytes, start: int, end: int) -> None:
        self._size += end - start
        if self._name not in self._rules.max_files:
            most = self._rules.max_bytes.get(self._name, MAX_TEXT_BYTES)
            if self._size > most:
                raise InvalidInput(self._name, f"expected at most {most} bytes, got more; send a shorter text")
        self._pieces.append(data[start:end])

    def end_part(self) -> None:
        content = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        if self._name in self._rules.max_files:
            self.files.append(content)
            return
        try:
            self.options.append((self._name, content.decode("utf-8")))
        except UnicodeDecodeError:
            raise InvalidInput(self._name, "expected text in UTF-8, got other bytes") from None

    def end(self) -> None:
        self.is_complete = True


def _shown(value: bytes) -> str:
    return value.decode("latin-1")[:MAX_SHOWN_CHARACTERS]
