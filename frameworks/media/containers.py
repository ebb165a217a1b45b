"""Recognise the container of a media file by its first bytes, and open it with PyAV, which reads no other file."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from typing import Any, Literal, NoReturn

from frameworks.core.errors import InvalidInput

Kind = Literal["audio", "video"]

MEDIA_EXTRA = "media"
FORMATS = "WAV, FLAC, MP3, OGG, AAC, AIFF, MP4, Matroska, WebM or AVI"
# The first bytes, at an offset, and ffmpeg's name of the demuxer. Playlists, which name other files, are not here.
_SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"fLaC", "flac"),
    (0, b"OggS", "ogg"),
    (0, b"ID3", "mp3"),
    (0, b"\x1aE\xdf\xa3", "matroska"),
    (4, b"ftyp", "mov"),
    (8, b"WAVE", "wav"),
    (8, b"AVI ", "avi"),
    (8, b"AIFF", "aiff"),
    (8, b"AIFC", "aiff"),
)
_MAX_REASON_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class MediaBounds:
    """Bounds of one file. `max_seconds`: of sound. `max_frame_pixels`: of a frame of a video. `max_decoded_pixels`: of
    the frames that are decoded. `max_picked_bytes`: of the frames that are returned.
    """

    max_bytes: int = 64 * 1024**2
    max_seconds: float = 600.0
    max_frame_pixels: int = 8_847_360
    max_decoded_pixels: int = 2_000_000_000
    max_picked_bytes: int = 512 * 1024**2


DEFAULT_BOUNDS = MediaBounds()


def has_decoder() -> bool:
    """Whether PyAV is installed."""
    return find_spec("av") is not None


def container_of(data: bytes) -> str | None:
    """Return ffmpeg's name of the container; None for another file."""
    for offset, signature, name in _SIGNATURES:
        if data[offset : offset + len(signature)] == signature:
            return name
    # The syncword of a frame, 11 or 12 bits. AAC in ADTS has a layer of 0, MPEG audio another one.
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0:
        return "aac" if data[1] & 0xF6 == 0xF0 else "mp3"
    return None


@contextmanager
def opened(data: bytes, kind: Kind, field: str, bounds: MediaBounds) -> Iterator[Any]:
    """Open a file; its container is closed at the end. Raises InvalidInput, also for errors of PyAV within."""
    if len(data) > bounds.max_bytes:
        raise InvalidInput(
            field, f"expected at most {bounds.max_bytes} bytes, got a file of {len(data)}; send a smaller one"
        )
    name = container_of(data)
    if name is None:
        raise InvalidInput(field, f"expected a file in {FORMATS}, got another one; convert it")
    # A server without sound and videos needs none of it.
    import av

    try:
        with av.open(BytesIO(data), format=name, io_open=_refuse_other_files, metadata_errors="replace") as container:
            if not getattr(container.streams, kind):
                raise InvalidInput(field, f"expected a file with {kind}, got one without; send another one")
            yield container
    except (av.error.FFmpegError, EOFError, OverflowError, UnicodeDecodeError) as error:
        reason = str(error)[:_MAX_REASON_CHARACTERS]
        raise InvalidInput(
            field, f"expected a whole {kind} file, got a damaged one ({reason}); encode it again"
        ) from None


def _refuse_other_files(url: str, flags: int, options: dict[str, Any]) -> NoReturn:
    raise OSError(1, "a file may not name another one")
