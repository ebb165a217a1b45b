"""Check what a model of mask-generation is asked for: points and boxes, or a grid of points on the image."""

from collections.abc import Mapping, Sequence
from typing import Any

from frameworks.core.errors import InvalidInput

MAX_OBJECTS = 256
"""Objects of one request that points or boxes show."""
MAX_POINTS = 1024
"""Points of all objects."""
MAX_GRID_POINTS = 25_000
"""Points of the grids of all crops of an image; each is a mask of three sizes."""
MAX_GRID_PIXELS = 1 << 36
"""Pixels of the masks of a grid, before filters: some minutes of a CPU."""
MAX_MASKS = 1000
"""Masks of one answer."""
MAX_MASK_PIXELS = 1 << 31
"""Pixels of the masks of one answer: their PNG files take up to a minute of a CPU."""
MAX_CANDIDATES = 20_000
"""Masks of a grid that pass its filters; overlaps are looked for among all of them."""
MASKS_OF_A_POINT = 3
MAX_RATIO = 200
"""Of the sides of an image: the shorter one still has pixels after the image is resized for the model."""

PROMPTS = ("input_points", "input_labels", "input_boxes")
_ALONE = ("input_points", "input_boxes")
_WITH_BOTH = frozenset({*PROMPTS, "multimask_output", "mask_threshold"})
_LEVELS = {"input_points": 3, "input_labels": 2, "input_boxes": 2}
_FORMS = {
    "input_points": "a list of objects, each a list of points [x, y]",
    "input_labels": "a list of objects, each a list with the label of each point",
    "input_boxes": "a list of boxes [left, top, right, bottom]",
}
_LABELS = (1, 0, -1, -10)


def check_prompts(parameters: Mapping[str, Any], width: int, height: int) -> dict[str, list[Any]]:
    """Return the points, labels and boxes of an image in the form of SamProcessor; empty where a grid is asked for.

    `parameters`: checked by `check_parameters`. Shapes: points [1, objects, points, 2], labels [1, objects, points],
    boxes [1, objects, 4]. The list of the image may be left out of a request. Raises InvalidInput.
    """
    if max(width, height) > MAX_RATIO * min(width, height):
        raise InvalidInput("image", f"expected sides of a ratio up to {MAX_RATIO}, got {width} x {height}; cut it")
    if not any(name in parameters for name in _ALONE):
        for name in ("input_labels", "multimask_output"):
            if name in parameters:
                raise InvalidInput(
                    f"parameters.{name}", "expected input_points or input_boxes beside it, got none; send them"
                )
        _check_grid(parameters, width, height)
        return {}
    for name in parameters:
        if name not in _WITH_BOTH:
            raise InvalidInput(
                f"parameters.{name}", "expected none beside input_points or input_boxes: it is of a grid; leave it out"
            )
    prompts = {name: _without_image(name, parameters[name]) for name in PROMPTS if name in parameters}
    _check_points(prompts, width, height)
    _check_boxes(prompts, width, height)
    counts = {name: len(objects) for name, objects in prompts.items()}
    if len(set(counts.values())) > 1:
        shown = " and ".join(f"{number} of {name}" for name, number in counts.items())
        raise InvalidInput(f"parameters.{next(iter(counts))}", f"expected as many objects in each, got {shown}")
    objects = next(iter(counts.values()))
    masks = objects * (MASKS_OF_A_POINT if parameters.get("multimask_output", True) else 1)
    if masks > MAX_MASKS or masks * width * height > MAX_MASK_PIXELS:
        raise InvalidInput(
            f"parameters.{next(iter(counts))}",
            f"expected at most {MAX_MASKS} masks of {MAX_MASK_PIXELS} pixels in all, got {masks} of {width} x {height} "
            "pixels; send fewer objects, or a smaller image",
        )
    return {name: [value] for name, value in prompts.items()}


def _without_image(name: str, value: Any) -> list[Any]:
    """Return the objects: without the list of the image around them, which transformers has."""
    field, levels = f"parameters.{name}", _levels_of(value)
    if levels == _LEVELS[name] + 1:
        if len(value) != 1:
            raise InvalidInput(field, f"expected {_FORMS[name]}, of one image, got those of {len(value)} images")
        value = value[0]
    elif levels != _LEVELS[name]:
        raise InvalidInput(field, f"expected {_FORMS[name]}, got {levels} lists in each other in place of that")
    if not 1 <= len(value) <= MAX_OBJECTS:
        raise InvalidInput(field, f"expected 1 to {MAX_OBJECTS} objects, got {len(value)}; split the request")
    objects: list[Any] = value
    return objects


def _levels_of(value: Any) -> int:
    """Return the number of lists in each other, along the first element of each."""
    levels = 0
    while isinstance(value, list):
        levels += 1
        value = value[0] if value else None
    return levels


def _check_points(prompts: Mapping[str, list[Any]], width: int, height: int) -> None:
    """Check the points of each object, and the label of each point."""
    points, labels = prompts.get("input_points"), prompts.get("input_labels")
    if points is None:
        if labels is not None:
            raise InvalidInput("parameters.input_labels", "expected input_points beside them, got none; send them")
        return
    each = len(points[0]) if isinstance(points[0], list) else 0
    if not 1 <= each * len(points) <= MAX_POINTS:
        raise InvalidInput(
            "parameters.input_points", f"expected 1 to {MAX_POINTS} points, got {each * len(points)}; split the request"
        )
    for number, own in enumerate(points):
        field = f"parameters.input_points[{number}]"
        _check_length(own, each, field, "points, as many as of the first object; fill up with points of the label -10")
        for at, point in enumerate(own):
            _check_inside(point, (width, height), f"{field}[{at}]", "a point [x, y]")
    for number, own in enumerate(labels or ()):
        field = f"parameters.input_labels[{number}]"
        _check_length(own, each, field, "labels, one for each point")
        for at, label in enumerate(own):
            if label not in _LABELS:
                raise InvalidInput(
                    f"{field}[{at}]",
                    "expected 1 (the object), 0 (not the object), -1 (the background) or -10 (no point)",
                )


def _check_boxes(prompts: Mapping[str, list[Any]], width: int, height: int) -> None:
    for number, box in enumerate(prompts.get("input_boxes", ())):
        field = f"parameters.input_boxes[{number}]"
        _check_inside(box, (width, height, width, height), field, "a box [left, top, right, bottom]")
        left, top, right, bottom = box
        if left >= right or top >= bottom:
            raise InvalidInput(field, "expected left below right and top below bottom, got another order; swap them")


def _check_length(own: Any, expected: int, field: str, kind: str) -> None:
    if not isinstance(own, list) or len(own) != expected:
        got = len(own) if isinstance(own, list) else "no list"
        raise InvalidInput(field, f"expected {expected} {kind}, got {got}")


def _check_inside(values: Any, limits: Sequence[int], field: str, form: str) -> None:
    """Check pairs of x and y, each from 0 to the side of the image."""
    if (
        not isinstance(values, list)
        or len(values) != len(limits)
        or not all(isinstance(each, int | float) for each in values)
    ):
        raise InvalidInput(field, f"expected {form} of numbers, got another value")
    for value, limit in zip(values, limits, strict=True):
        if not 0 <= value <= limit:
            raise InvalidInput(
                field, f"expected {form} in the image, from 0 to {limits[0]} and from 0 to {limits[1]}, got {value}"
            )


def _check_grid(parameters: Mapping[str, Any], width: int, height: int) -> None:
    """Bound the points of a grid and the pixels of their masks."""
    layers = parameters.get("crops_n_layers", 0)
    if layers and parameters.get("crop_n_points_downscale_factor", 1) > 1:
        raise InvalidInput(
            "parameters.crop_n_points_downscale_factor",
            "expected 1 with crops: transformers needs as many points in each crop; leave it out",
        )
    if layers and min(width, height) < 4**layers:
        raise InvalidInput(
            "parameters.crops_n_layers",
            f"expected an image of {4**layers} pixels or more on each side, got {width} x {height}; lower it",
        )
    points = parameters.get("points_per_crop", 32) ** 2 * sum(4**layer for layer in range(layers + 1))
    if points > MAX_GRID_POINTS:
        raise InvalidInput(
            "parameters.points_per_crop",
            f"expected at most {MAX_GRID_POINTS} points in all crops, got {points}; lower it or crops_n_layers",
        )
    pixels = points * MASKS_OF_A_POINT * width * height
    if pixels > MAX_GRID_PIXELS:
        raise InvalidInput(
            "parameters.points_per_crop",
            f"expected points times pixels of up to {MAX_GRID_PIXELS // MASKS_OF_A_POINT}, got {points} times "
            f"{width * height}; lower it, or send a smaller image",
        )
