"""Decode image files within bounds to pixels in the order red, green, blue.

JPEG is decoded by simplejpeg, which takes about half the time of Pillow; both have the pixels of libjpeg-turbo. All
other files, and those that simplejpeg refuses, are decoded by Pillow. Both release the interpreter's lock.
"""

import warnings
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from frameworks.core.errors import InvalidInput
from frameworks.images.headers import FORMATS, name_of_format, read_header, read_orientation
from frameworks.images.types import DamagedHeader, ImageHeader

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

# A file that cannot be decoded is refused with the reason. Pillow's warnings are about files that can.
warnings.filterwarnings("ignore", module=r"PIL\.")

_MAX_SCANS = 100
"""Encoders write about ten. Each takes as long as the decoding of the whole image, however few bytes it has."""
_MAX_SCANNED_PIXELS = 1_000_000_000
"""Pixels times scans: decoding them takes some seconds."""
_FILES: dict[str, type[ImageFile]] = {
    "JPEG": JpegImageFile, "PNG": PngImageFile, "WebP": WebPImageFile, "GIF": GifImageFile, "BMP": BmpImageFile,
    "TIFF": TiffImageFile, "AVIF": AvifImageFile,
}  # fmt: skip
_COUNTS_FRAMES = ("PNG", "WebP", "AVIF")
"""Formats whose number of frames Pillow tells without reading all of them."""
_TURNED = (5, 6, 7, 8)
_Transpose = Image.Transpose
_TRANSPOSES: dict[int, _Transpose] = {
    2: _Transpose.FLIP_LEFT_RIGHT,
    3: _Transpose.ROTATE_180,
    4: _Transpose.FLIP_TOP_BOTTOM,
    5: _Transpose.TRANSPOSE,
    6: _Transpose.ROTATE_270,
    7: _Transpose.TRANSVERSE,
    8: _Transpose.ROTATE_90,
}


@dataclass(frozen=True, slots=True)
class ImageBounds:
    """Bounds of one image file, checked before it is decoded. `max_side`: of height and width, in pixels."""

    max_bytes: int = 64 * 1024**2
    max_pixels: int = 50_000_000
    max_side: int = 32_768


DEFAULT_BOUNDS = ImageBounds()


def decode_image(data: bytes, field: str, bounds: ImageBounds = DEFAULT_BOUNDS) -> Pixels:
    """Return the pixels of a file, uint8 [height, width, 3], with its Exif orientation applied.

    Greyscale, palette, CMYK and 16-bit files are converted as Pillow's `convert("RGB")` does; transparency is dropped.
    Raises InvalidInput with this `field`: for another format, beyond the bounds, with several frames, and damaged.
    """
    return np.asarray(decode_rgb(data, check_header(data, field, bounds), field))


def check_header(data: bytes, field: str, bounds: ImageBounds = DEFAULT_BOUNDS) -> ImageHeader:
    """Return the header of a file within the bounds. Takes some microseconds. Raises InvalidInput."""
    if len(data) > bounds.max_bytes:
        raise InvalidInput(
            field, f"expected at most {bounds.max_bytes} bytes, got a file of {len(data)}; send a smaller one"
        )
    try:
        header = read_header(data)
    except DamagedHeader as error:
        raise _damaged(field, str(error)) from None
    if header is None:
        raise InvalidInput(field, f"expected a file in {FORMATS}, got {name_of_format(data)}; convert it")
    height, width = header.height, header.width
    if not (height and width):
        raise _damaged(field, f"an image of {width} x {height} pixels")
    if max(height, width) > bounds.max_side or height * width > bounds.max_pixels:
        raise InvalidInput(
            field,
            f"expected at most {bounds.max_pixels} pixels and sides of {bounds.max_side}, got an image of "
            f"{width} x {height}; send a smaller one",
        )
    if header.is_animated:
        raise _animated(field)
    most_scans = min(_MAX_SCANS, _MAX_SCANNED_PIXELS // (height * width))
    if header.scans > most_scans:
        raise InvalidInput(
            field, f"expected at most {most_scans} scans for {width} x {height}, got {header.scans}; encode it again"
        )
    return header


def decode_rgb(data: bytes, header: ImageHeader, field: str) -> Image.Image:
    """Return the image of a file whose header was checked, in the mode RGB. Raises InvalidInput."""
    try:
        image, orientation = _decoded(data, header, field)
        transpose = _TRANSPOSES.get(orientation)
        return image if transpose is None else image.transpose(transpose)
    except InvalidInput:
        raise
    except MemoryError:
        raise InvalidInput(
            field, f"expected an image that fits into memory, got {header.width} x {header.height} pixels; resize it"
        ) from None
    except Exception as error:  # noqa: BLE001 - decoders raise many types for damaged files
        raise _damaged(field, f"a damaged one ({_reason(error)})") from None


def _decoded(data: bytes, header: ImageHeader, field: str) -> tuple[Image.Image, int]:
    """Return the image and its orientation."""
    if header.format == "JPEG" and header.channels in (1, 3):
        try:
            return Image.fromarray(simplejpeg.decode_jpeg(data, "RGB")), header.orientation
        except ValueError:
            # It refuses also what libjpeg only warns of, such as bytes between two markers. Pillow decodes those.
            pass
    file = _FILES[header.format](BytesIO(data))
    is_turned = header.format == "TIFF" and header.orientation in _TURNED
    if file.size != ((header.height, header.width) if is_turned else (header.width, header.height)):
        raise ValueError("its headers disagree")
    if header.format in _COUNTS_FRAMES and getattr(file, "n_frames", 1) > 1:
        raise _animated(field)
    file.load()
    # Pillow warns of transparency that a conversion drops.
    file.info.pop("transparency", None)
    exif = file.info.get("exif")
    # Pillow turns a TIFF upright itself.
    stored = 1 if header.format == "TIFF" else header.orientation
    orientation = stored or (read_orientation(exif) if isinstance(exif, bytes) else 1)
    return (file if file.mode == "RGB" else file.convert("RGB")), orientation


def _animated(field: str) -> InvalidInput:
    return InvalidInput(field, "expected an image of one frame, got several; send its frames as images")


def _damaged(field: str, found: str) -> InvalidInput:
    return InvalidInput(field, f"expected a whole image file, got {found}; encode it again")


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:100] if lines else type(error).__name__
