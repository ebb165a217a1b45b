"""Read audio and video out of JSON: base64 or data URLs. Shared by all protocols; no URL is ever fetched."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from app.protocols.shared.fields.images import check_num_images
from app.protocols.shared.fields.images import decode_image as _decode_image
from app.protocols.shared.fields.model_inputs import explain_expected_input
from app.protocols.shared.json.body import describe_type
from frameworks.core.errors import InvalidInput
from frameworks.images.encoded import read_encoded
from frameworks.media.container import DEFAULT_BOUNDS
from frameworks.media.kinds import Kind
from frameworks.types import ModelSpec

FileKind = Literal["audio", "video"]
FIELDS: tuple[Kind, ...] = ("image", "audio", "video")
"""The fields that hold files."""
MAX_FILES = 32
"""Audio and video files of one request."""

MediaFiles = str | Annotated[list[str], Field(min_length=1, max_length=MAX_FILES, fail_fast=True)]
"""The schema of one file of audio or video, or several."""


def check_reads(spec: ModelSpec, kind: Kind, field: str) -> None:
    """Raise InvalidInput for a model that does not read files of this kind."""
    reads = spec.pipeline.inputs if spec.pipeline is not None else ("image",) if spec.image is not None else ()
    if kind not in reads:
        what = "images" if kind == "image" else kind
        raise InvalidInput(field, f"expected a model that reads {what}, got another; {explain_expected_input(spec)}")


def check_num_files(count: int, kind: Kind, field: str) -> None:
    """Raise InvalidInput for no file, and for more than the bound of this kind."""
    if kind == "image":
        check_num_images(count, field)
    elif not 1 <= count <= MAX_FILES:
        raise InvalidInput(field, f"expected 1 to {MAX_FILES} files of {kind}, got {count}; split the request")


def decode_files(given: Sequence[Any], kind: Kind, field: str, is_list: bool = True) -> list[bytes]:
    """Return the files of a list of base64 texts. `is_list` False: `field` holds the only one. Raises InvalidInput."""
    check_num_files(len(given), kind, field)
    return [decode_file(each, kind, f"{field}[{index}]" if is_list else field) for index, each in enumerate(given)]


def decode_file(text: Any, kind: Kind, field: str) -> bytes:
    """Return the file of a data URL or of plain base64, within the bound in bytes. Raises InvalidInput."""
    if kind == "image":
        return _decode_image(text, field)
    if not isinstance(text, str):
        raise InvalidInput(field, f"expected {kind} as base64 or data URL, got {describe_type(text)}")
    # Four characters of base64 are three bytes; line ends and the head of a data URL take some.
    if len(text) > DEFAULT_BOUNDS.max_bytes * 3 // 2:
        raise InvalidInput(
            field, f"expected a file of at most {DEFAULT_BOUNDS.max_bytes} bytes, got more; send a smaller one"
        )
    return read_encoded(text, field, kind)


def read_audio(given: Any, field: str = "audio") -> list[bytes]:
    """Return the files of a field: one base64 text or a list of them. Raises InvalidInput."""
    return _read(given, "audio", field)


def read_video(given: Any, field: str = "video") -> list[bytes]:
    """Return the files of a field: one base64 text or a list of them. Raises InvalidInput."""
    return _read(given, "video", field)


def _read(given: Any, kind: FileKind, field: str) -> list[bytes]:
    is_list = isinstance(given, list)
    return decode_files(given if is_list else [given], kind, field, is_list)
