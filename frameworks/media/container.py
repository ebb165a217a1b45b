"""Open the containers of audio and video within bounds: formats and decoders of a list, and no other file or URL."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any, NoReturn

from frameworks.core.errors import InvalidInput
from frameworks.core.extras import install_command
from frameworks.media.kinds import FORMATS, Kind, demuxer_of

if TYPE_CHECKING:
    from av.container import InputContainer

EXTRA = "media"

_DECODERS = (
    "pcm_u8", "pcm_s8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le", "pcm_s16be", "pcm_s24be",
    "pcm_s32be", "pcm_f32be", "pcm_f64be", "pcm_alaw", "pcm_mulaw", "flac", "mp3", "mp3float", "mp2", "mp2float",
    "opus", "libopus", "vorbis", "aac", "alac", "h264", "hevc", "vp8", "vp9", "libvpx", "libvpx-vp9", "av1", "libdav1d",
    "mpeg4", "mjpeg", "theora",
)  # fmt: skip
_MAX_STREAMS = 16
_PROBED_BYTES = 4 * 1024**2
_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class MediaBounds:
    """Bounds of one file, checked before it is decoded and again while it is, as a container may lie.

    `max_seconds`: of audio or video. `max_frames`: decoded ones of a video, also those that are not kept.
    `max_pixels`: of one frame. `max_decoded_pixels`: of all decoded frames. `max_kept_pixels`: of the returned ones.
    """

    max_bytes: int = 64 * 1024**2
    max_seconds: int = 600
    max_frames: int = 10_000
    max_pixels: int = 8_912_896
    max_decoded_pixels: int = 4_000_000_000
    max_kept_pixels: int = 200_000_000


DEFAULT_BOUNDS = MediaBounds()


def is_installed() -> bool:
    """Return whether the extra `media` is installed. Imports nothing."""
    return find_spec("av") is not None


def missing_reason() -> str:
    """Return the reason of an error without the extra, and the command that adds it."""
    return f"expected the extra {EXTRA}, got none; {install_command(EXTRA)}"


@contextmanager
def opened(data: bytes, kind: Kind, field: str, bounds: MediaBounds) -> "Iterator[InputContainer]":
    """Open a file whose stream of this kind is the first one. Raises InvalidInput, also for errors in the block.

    The size, the format and the duration that the container tells are within the bounds.
    """
    if not is_installed():
        raise InvalidInput(field, missing_reason())
    if len(data) > bounds.max_bytes:
        raise InvalidInput(
            field, f"expected at most {bounds.max_bytes} bytes, got a file of {len(data)}; send a smaller one"
        )
    found = demuxer_of(data)
    if found is None:
        what = "other bytes" if data else "an empty file"
        raise InvalidInput(field, f"expected a file in {FORMATS[kind]}, got {what}; convert it")
    import av

    try:
        with av.open(
            BytesIO(data),
            "r",
            format=found[1],
            options=_options(found[1], bounds),
            metadata_errors="replace",
            io_open=_refuse,
        ) as container:
            assert isinstance(container, av.container.InputContainer)
            _check_container(container, kind, field, bounds)
            yield container
    except InvalidInput:
        raise
    except MemoryError:
        raise InvalidInput(field, f"expected {kind} that fits into memory, got more; send a shorter one") from None
    except Exception as error:  # noqa: BLE001 - decoders raise many types for damaged files
        # A decoder that refuses the size of its frames tells nothing else.
        size = f", or frames of more than {bounds.max_pixels} pixels" if kind == "video" else ""
        raise damaged(kind, field, reason_of(error) + size) from None


def damaged(kind: Kind, field: str, found: str) -> InvalidInput:
    """Return the error of a file that cannot be decoded."""
    return InvalidInput(field, f"expected a whole {kind} file, got a damaged one ({found}); encode it again")


def too_long(kind: Kind, field: str, bounds: MediaBounds, found: str) -> InvalidInput:
    """Return the error of a file that lasts longer than the bound."""
    return InvalidInput(
        field, f"expected at most {bounds.max_seconds} seconds of {kind}, got {found}; send a shorter file"
    )


def reason_of(error: Exception) -> str:
    """Return the name of an error. Its text may hold paths, and bytes of the file."""
    strerror = getattr(error, "strerror", None)
    return strerror[:100] if isinstance(strerror, str) else type(error).__name__


def prepare_decoder(stream: Any, bounds: MediaBounds) -> None:
    """Bound the decoder of a stream before it is opened: one thread, known decoders, frames of so many pixels."""
    context = stream.codec_context
    context.options = {"codec_whitelist": ",".join(_DECODERS), "max_pixels": str(bounds.max_pixels)}
    context.thread_count = 1


def _check_container(container: Any, kind: Kind, field: str, bounds: MediaBounds) -> None:
    streams = container.streams.audio if kind == "audio" else container.streams.video
    if not streams:
        raise InvalidInput(field, f"expected a file with a stream of {kind}, got one without; send another file")
    stream = streams[0]
    lengths = [0.0 if container.duration is None else container.duration / _MICROSECONDS]
    if stream.duration is not None and stream.time_base is not None:
        lengths.append(float(stream.duration * stream.time_base))
    if max(lengths) > bounds.max_seconds:
        raise too_long(kind, field, bounds, f"{max(lengths):.0f}")


def _options(demuxer: str, bounds: MediaBounds) -> dict[str, str]:
    """Return options of libavformat and its decoders. An empty list of protocols admits none."""
    options = {
        "protocol_whitelist": "",
        "codec_whitelist": ",".join(_DECODERS),
        "max_streams": str(_MAX_STREAMS),
        "probesize": str(_PROBED_BYTES),
        "max_pixels": str(bounds.max_pixels),
    }
    return options | ({"enable_drefs": "0"} if demuxer == "mov" else {})


def _refuse(url: str, flags: int, options: dict[str, str]) -> NoReturn:
    raise OSError("a media file opens no other file")
