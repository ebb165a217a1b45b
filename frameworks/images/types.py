"""Define what the headers of image files say."""

from dataclasses import dataclass
from typing import Literal

Format = Literal["JPEG", "PNG", "WebP", "GIF", "BMP", "TIFF", "AVIF"]


class DamagedHeader(Exception):
    """The header is cut off or invalid. Its text completes `expected a whole file, got …`."""


@dataclass(frozen=True, slots=True)
class ImageHeader:
    """The header of one image file. `height`, `width`: in pixels as stored, before the orientation is applied.

    `bits_per_pixel`: as stored. `orientation`: of Exif, 1 to 8; 0 where it is not known yet. `channels`: of a JPEG,
    else 0. `scans`: number of passes of a JPEG, else 1. `is_animated`: of a WebP, a TIFF or an AVIF file; that of a
    PNG is found when it is opened. A GIF file stands for its first frame.
    """

    format: Format
    height: int
    width: int
    bits_per_pixel: int
    orientation: int = 1
    channels: int = 0
    scans: int = 1
    is_animated: bool = False
