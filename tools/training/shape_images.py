"""Draw the images of ``shapes`` and ``tiny-vision``: one shape of any size and angle before a background.

As in photos, the backgrounds are gradients with lines and blobs behind the shape; images are blurred, noisy and
JPEG-compressed. All randomness is of the generator that the caller passes. The shape has any colour, or one that is
close to a named one.
"""

import io
import math
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from PIL import Image, ImageDraw, ImageFilter

SIDE = 64
"""Pixels of one side."""

_SCALE = 2  # images are drawn larger and then reduced, so that edges are smooth
_MIN_CONTRAST = 110.0
_MIN_SQUEEZE = 0.82

Point = tuple[float, float]
Polygon = list[Point]


def _star() -> Polygon:
    return [_polar(index * 36 - 90, 1.0 if index % 2 == 0 else 0.42) for index in range(10)]


def _regular(corners: int) -> Polygon:
    return [_polar(index * 360 / corners - 90, 1.0) for index in range(corners)]


def _heart() -> Polygon:
    points = []
    for degrees in range(0, 360, 6):
        t = math.radians(degrees)
        x = 16 * math.sin(t) ** 3
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        points.append((x / 17, -y / 17))
    return points


def _cross() -> Polygon:
    arm = 0.33
    corners = [(-arm, -1), (arm, -1), (arm, -arm), (1, -arm), (1, arm), (arm, arm)]
    return [*corners, (arm, 1), (-arm, 1), (-arm, arm), (-1, arm), (-1, -arm), (-arm, -arm)]


def _arrow() -> Polygon:
    return [(0, -1), (0.75, -0.1), (0.28, -0.1), (0.28, 1), (-0.28, 1), (-0.28, -0.1), (-0.75, -0.1)]


def _crescent() -> Polygon:
    outer = [_polar(degrees, 1.0) for degrees in range(40, 321, 8)]
    inner = [(0.42 + 0.72 * math.cos(math.radians(d)), 0.72 * math.sin(math.radians(d))) for d in range(296, 63, -8)]
    return outer + inner


def _ring() -> Polygon:
    outer = [_polar(degrees, 1.0) for degrees in range(0, 361, 8)]
    return outer + [_polar(degrees, 0.55) for degrees in range(360, -1, -8)]


def _polar(degrees: float, radius: float) -> Point:
    return radius * math.cos(math.radians(degrees)), radius * math.sin(math.radians(degrees))


SHAPES: Mapping[str, Callable[[], Polygon]] = {
    "arrow": _arrow,
    "circle": lambda: _regular(48),
    "crescent": _crescent,
    "cross": _cross,
    "heart": _heart,
    "hexagon": lambda: _regular(6),
    "ring": _ring,
    "square": lambda: _regular(4),
    "star": _star,
    "triangle": lambda: _regular(3),
}
"""Label → outline, within the circle of radius 1 around the origin. The labels are in the order of the output."""


COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "orange": (250, 140, 20),
    "yellow": (245, 225, 40),
    "green": (40, 160, 60),
    "cyan": (40, 205, 215),
    "blue": (40, 80, 220),
    "purple": (130, 50, 180),
    "pink": (250, 130, 190),
    "brown": (120, 75, 40),
    "grey": (128, 128, 128),
    "white": (245, 245, 245),
    "black": (20, 20, 20),
}
"""Name → red, green and blue of its centre. A colour has the name of the nearest centre."""
MAX_COLOUR_DIFFERENCE = 20
"""Of each channel of a named colour from its centre, so that no other centre is nearly as close."""
_PLAIN_SHARE = 0.3
_MIN_NAMED_SQUEEZE = 0.75  # as of photos of 4:3, which a processor makes square
_PLAIN_BACKGROUNDS = ((255, 255, 255), (0, 0, 0), (128, 128, 128), (200, 220, 240))


def draw(label: str, random: Random, side: int = SIDE) -> Image.Image:
    """Return an RGB image of ``side`` x ``side`` pixels with one shape."""
    return _as_photo(label, random, side, _colour(random))[0]


def draw_named(label: str, colour: str, random: Random, side: int = SIDE) -> tuple[Image.Image, Image.Image]:
    """Return an RGB image of ``side`` x ``side`` pixels with one shape, in a colour close to that of the name, and the
    shape alone, white on black, with a quarter of the pixels.

    Three of ten images are plain: a background of one colour, without noise.
    """
    difference = MAX_COLOUR_DIFFERENCE
    fill = tuple(max(0, min(255, each + random.randint(-difference, difference))) for each in COLOURS[colour])
    canvas = side * _SCALE
    if random.random() < _PLAIN_SHARE:
        backgrounds = [each for each in _PLAIN_BACKGROUNDS if math.dist(each, fill) >= _MIN_CONTRAST]
        image = Image.new("RGB", (canvas, canvas), random.choice(backgrounds))
        outline = _placed(SHAPES[label](), canvas, random, _MIN_NAMED_SQUEEZE)
        ImageDraw.Draw(image).polygon(outline, fill=fill)
        image = image.resize((side, side), Image.Resampling.BOX)
    else:
        image, outline = _as_photo(label, random, side, _far_from(fill, random), fill)
    mask = Image.new("L", (canvas, canvas))
    ImageDraw.Draw(mask).polygon(outline, fill=255)
    return image, mask.resize((side // 2, side // 2), Image.Resampling.BOX)


def colour_of(pixel: tuple[int, ...]) -> str:
    """Return the name of a colour: that of the nearest centre."""
    return min(COLOURS, key=lambda name: math.dist(COLOURS[name], pixel))


def _as_photo(
    label: str, random: Random, side: int, background: tuple[int, ...], fill: tuple[int, ...] | None = None
) -> tuple[Image.Image, Polygon]:
    """Return an image whose shape has the colour ``fill``, or any that is easy to tell from the background, and its
    outline at the scale of drawing.
    """
    canvas = side * _SCALE
    image = _gradient(canvas, background, random)
    pen = ImageDraw.Draw(image)
    for _ in range(random.randint(0, 5)):
        _draw_clutter(pen, canvas, background, random)
    outline = _placed(SHAPES[label](), canvas, random, _MIN_NAMED_SQUEEZE if fill else _MIN_SQUEEZE)
    pen.polygon(outline, fill=fill or _far_from(background, random))
    image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.0, 0.03) * side))
    image = image.resize((side, side), Image.Resampling.BOX)
    return _compressed(_with_noise(image, random), random), outline


def _placed(polygon: Polygon, canvas: int, random: Random, min_squeeze: float = _MIN_SQUEEZE) -> Polygon:
    """Return the outline at a random place, size, angle and with a slight distortion."""
    radius = random.uniform(0.24, 0.46) * canvas
    free = canvas / 2 - radius
    centre = (canvas / 2 + random.uniform(-free, free), canvas / 2 + random.uniform(-free, free))
    angle = math.radians(random.uniform(-180, 180))
    squeeze, shear = random.uniform(min_squeeze, 1.0), random.uniform(-0.12, 0.12)
    cosine, sine = math.cos(angle) * radius, math.sin(angle) * radius
    bent = ((x + shear * y, y * squeeze) for x, y in polygon)
    return [(centre[0] + x * cosine - y * sine, centre[1] + x * sine + y * cosine) for x, y in bent]


def _gradient(canvas: int, colour: tuple[int, ...], random: Random) -> Image.Image:
    """Return the background: a gradient between two colours that are alike, in any direction."""
    other = tuple(max(0, min(255, each + random.randint(-35, 35))) for each in colour)
    ramp = Image.linear_gradient("L").rotate(random.choice((0, 90, 180, 270))).resize((canvas, canvas))
    return Image.composite(Image.new("RGB", ramp.size, colour), Image.new("RGB", ramp.size, other), ramp)


def _draw_clutter(pen: Any, canvas: int, background: tuple[int, ...], random: Random) -> None:
    """Draw a line or a blob in a colour that is close to that of the background."""
    colour = tuple(max(0, min(255, each + random.randint(-30, 30))) for each in background)
    ends = [random.uniform(0, canvas) for _ in range(4)]
    if random.random() < 0.5:
        pen.line(ends, fill=colour, width=random.randint(1, canvas // 16))
    else:
        half = random.uniform(0.04, 0.2) * canvas
        pen.ellipse((ends[0] - half, ends[1] - half, ends[0] + half, ends[1] + half), fill=colour)


def _with_noise(image: Image.Image, random: Random) -> Image.Image:
    noise = Image.frombytes("L", image.size, random.randbytes(image.width * image.height)).convert("RGB")
    return Image.blend(image, noise, random.uniform(0.0, 0.12))


def _compressed(image: Image.Image, random: Random) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=random.randint(55, 95))
    return Image.open(file).convert("RGB")


def _colour(random: Random) -> tuple[int, ...]:
    return tuple(random.randint(0, 255) for _ in range(3))


def _far_from(colour: tuple[int, ...], random: Random) -> tuple[int, ...]:
    """Return a colour that is easy to tell from another one."""
    while True:
        other = _colour(random)
        if math.dist(other, colour) >= _MIN_CONTRAST:
            return other
