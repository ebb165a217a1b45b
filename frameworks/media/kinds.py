"""Tell the kind of a file by its first bytes. Nothing else of the file is read."""

from typing import Literal

from frameworks.images.avif import brands_of, is_avif, is_heic
from frameworks.images.headers import is_image

Kind = Literal["image", "audio", "video"]
Demuxer = Literal["wav", "flac", "mp3", "ogg", "aac", "aiff", "mov", "matroska", "avi"]

FORMATS: dict[Kind, str] = {
    "audio": "WAV, FLAC, MP3, Ogg, AAC, AIFF, M4A or MP4, WebM or Matroska",
    "video": "MP4 or MOV, WebM or Matroska, AVI or Ogg",
}
MEDIA_TYPES: dict[Kind, tuple[str, ...]] = {
    "audio": (
        "audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave", "audio/flac", "audio/x-flac", "audio/mpeg",
        "audio/mp3", "audio/ogg", "audio/opus", "audio/aac", "audio/aiff", "audio/x-aiff", "audio/mp4", "audio/m4a",
        "audio/x-m4a", "audio/webm", "audio/x-matroska",
    ),
    "video": (
        "video/mp4", "video/quicktime", "video/webm", "video/x-matroska", "video/x-msvideo",
        "video/avi", "video/ogg",
    ),
}  # fmt: skip
"""Content types of the files that models read. That of an image: app/protocols/shared/fields/images.py."""

_AUDIO_BRANDS = frozenset({b"M4A ", b"M4B ", b"M4P ", b"F4A "})
_STARTS: dict[bytes, tuple[Kind, Demuxer]] = {
    b"fLaC": ("audio", "flac"), b"ID3": ("audio", "mp3"), b"\x1a\x45\xdf\xa3": ("video", "matroska"),
}  # fmt: skip
_RIFF_KINDS: dict[bytes, tuple[Kind, Demuxer]] = {b"WAVE": ("audio", "wav"), b"AVI ": ("video", "avi")}
_QUICKTIME_BOXES = (b"ftyp", b"moov", b"mdat", b"wide")
_OGG_PAGE_BYTES = 64
_ADTS = (b"\xff\xf1", b"\xff\xf9")


def kind_of(data: bytes) -> Kind | None:
    """Return the kind of a file; None for other bytes. A container of audio and video is a video."""
    if is_image(data) or is_heic(data) or is_avif(data):
        return "image"
    found = demuxer_of(data)
    return None if found is None else found[0]


def demuxer_of(data: bytes) -> tuple[Kind, Demuxer] | None:
    """Return the kind and the format of an audio or video file; None for other bytes."""
    for magic, found in _STARTS.items():
        if data.startswith(magic):
            return found
    if data.startswith(b"RIFF"):
        return _RIFF_KINDS.get(data[8:12])
    if data.startswith(b"FORM") and data[8:12] in (b"AIFF", b"AIFC"):
        return "audio", "aiff"
    if data.startswith(b"OggS"):
        return ("video" if b"theora" in data[:_OGG_PAGE_BYTES] else "audio"), "ogg"
    if data[4:8] in _QUICKTIME_BOXES:
        return ("audio" if brands_of(data)[:1] and brands_of(data)[0] in _AUDIO_BRANDS else "video"), "mov"
    if data.startswith(_ADTS):
        return "audio", "aac"
    if _is_mpeg_audio(data):
        return "audio", "mp3"
    return None


def _is_mpeg_audio(data: bytes) -> bool:
    """Return whether a file begins with a frame of MPEG audio: its marks, and no reserved value."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return False
    version, layer = data[1] >> 3 & 3, data[1] >> 1 & 3
    return version != 1 and layer != 0 and data[2] >> 4 not in (0, 15) and data[2] >> 2 & 3 != 3
