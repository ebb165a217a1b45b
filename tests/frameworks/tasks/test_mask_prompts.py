"""Points, boxes and grids of masks: their forms and bounds, each refused by name."""

import re
from typing import Any

import pytest

from frameworks.core.errors import FieldError, InvalidInput
from frameworks.tasks.mask_prompts import check_prompts
from frameworks.tasks.parameters import check_parameters
from frameworks.tasks.table import TASKS

WIDTH, HEIGHT = 60, 40
MANY = [[[1, 1]]] * 257


def checked(given: dict[str, Any], width: int = WIDTH, height: int = HEIGHT) -> dict[str, Any]:
    return check_prompts(check_parameters(TASKS["mask-generation"], given), width, height)


@pytest.mark.parametrize(
    "given",
    [
        {"input_points": [[[0, 40], [60, 0.5]]]},
        {"input_points": [[[1, 2]], [[3, 4]]], "input_labels": [[1], [0]]},
        {"input_boxes": [[0, 0, 60, 40]]},
        {"input_points": [[[1, 2]]], "input_boxes": [[0, 0, 1, 1]], "multimask_output": False, "mask_threshold": 1},
    ],
)
def test_prompts_have_the_list_of_image(given: dict[str, Any]) -> None:
    prompts = {name: value for name, value in given.items() if name.startswith("input_")}
    expected = {name: [value] for name, value in prompts.items()}
    assert checked(given) == checked(given | expected) == expected


@pytest.mark.parametrize("given", [{}, {"points_per_crop": 64}, {"crops_n_layers": 2}, {"points_per_batch": 1024}])
def test_grid_has_no_prompts(given: dict[str, Any]) -> None:
    assert checked(given) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"input_labels": [[1]]}, "input_labels: expected input_points or input_boxes beside it"),
        ({"multimask_output": False}, "multimask_output: expected input_points or input_boxes"),
        ({"input_boxes": [[0, 0, 1, 1]], "input_labels": [[1]]}, "input_labels: expected input_points beside them"),
        ({"input_points": [[[1, 2]]], "points_per_crop": 3}, "points_per_crop: expected none beside input_points"),
        ({"input_points": [1, 2]}, r"input_points: expected a list of objects, .*, got 1 lists"),
        ({"input_points": [[1, 2]]}, "input_points: expected a list of objects"),
        ({"input_points": [[[[1, 2]]], [[[1, 2]]]]}, "input_points: .* of one image, got those of 2"),
        ({"input_points": [[[1, 2], [3, 4]], [[5, 6]]]}, r"input_points\[1\]: expected 2 points"),
        ({"input_points": [[[1, 2]], 3]}, r"input_points\[1\]: expected 1 points"),
        ({"input_points": [[[1, 2], [3]]]}, r"input_points\[0\]\[1\]: expected a point \[x, y\]"),
        ({"input_points": [[[1, 2], [{"x": 1}, 3]]]}, r"input_points\[0\]\[1\]: expected a point"),
        ({"input_points": [[[1, 2], [[1], 3]]]}, r"input_points\[0\]\[1\]: expected a point"),
        ({"input_points": [[[61, 2]]]}, r"input_points\[0\]\[0\]: .*from 0 to 60 and from 0 to 40, got 61"),
        ({"input_points": [[[1, -0.5]]]}, r"input_points\[0\]\[0\]: .*got -0\.5"),
        ({"input_points": [[]]}, "input_points: "),
        ({"input_points": []}, "input_points: expected a list of 1 to 4096"),
        ({"input_points": [[[]]]}, r"input_points\[0\]\[0\]: "),
        ({"input_points": [[[float("nan"), 1]]]}, "input_points: expected finite numbers"),
        ({"input_points": [[["1", 1]]]}, "input_points: expected finite numbers"),
        ({"input_points": [[[True, 1]]]}, "input_points: expected finite numbers"),
        ({"input_points": [[[10**400, 1]]]}, "input_points: expected finite numbers"),
        ({"input_points": [[[[[1, 2]]]]]}, "input_points: expected up to 4 lists"),
        ({"input_points": {"x": 1}}, "input_points: expected a list"),
        ({"input_points": MANY}, "input_points: expected 1 to 256 objects, got 257"),
        ({"input_points": [[[1, 1]] * 1025]}, "input_points: expected 1 to 1024 points, got 1025"),
        ({"input_points": [[[1, 1]] * 2000]}, "input_points: expected a list of 1 to 4096"),
        ({"input_points": [[[1, 2]]], "input_labels": [[1, 0]]}, r"input_labels\[0\]: expected 1 labels, .*got 2"),
        ({"input_points": [[[1, 2]]], "input_labels": [[2]]}, r"input_labels\[0\]\[0\]: expected 1 \(the object\)"),
        ({"input_points": [[[1, 2]]], "input_labels": [[1], [1]]}, "input_points: expected as many objects"),
        ({"input_points": [[[1, 2]]], "input_boxes": [[0, 0, 1, 1]] * 2}, "1 of input_points and 2 of input_boxes"),
        ({"input_boxes": [[0, 0, 1]]}, r"input_boxes\[0\]: expected a box"),
        ({"input_boxes": [0, 0, 1, 1]}, "input_boxes: expected a list of boxes"),
        ({"input_boxes": [[0, 0, 61, 1]]}, r"input_boxes\[0\]: .*got 61"),
        ({"input_boxes": [[0, 0, 1, 41]]}, r"input_boxes\[0\]: .*got 41"),
        ({"input_boxes": [[5, 0, 5, 9]]}, r"input_boxes\[0\]: expected left below right"),
        ({"input_boxes": [[0, 9, 5, 3]]}, r"input_boxes\[0\]: expected left below right"),
        ({"points_per_crop": 65}, "points_per_crop: expected an integer from 1 to 64"),
        ({"points_per_crop": 64, "crops_n_layers": 2}, "points_per_crop: expected at most 25000 points .*got 86016"),
        ({"crops_n_layers": 1, "crop_n_points_downscale_factor": 2}, "crop_n_points_downscale_factor: expected 1 with"),
        ({"max_hole_area": 3}, "max_hole_area: unknown field"),
    ],
)
def test_wrong_prompts_are_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(FieldError) as refused:
        checked(given)
    assert re.search(message, f"{refused.value.field}: {refused.value.reason}")
    assert refused.value.field.startswith("parameters.")


@pytest.mark.parametrize(
    ("given", "width", "height", "message"),
    [
        ({}, 7000, 7000, r"parameters\.points_per_crop: expected points times pixels"),
        ({"crops_n_layers": 2}, 15, 900, r"parameters\.crops_n_layers: expected an image of 16 pixels"),
        ({}, 2000, 9, "image: expected sides of a ratio up to 200"),
        ({"input_boxes": [[0, 0, 1, 1]] * 200}, 4000, 3000, r"parameters\.input_boxes: expected at most 1000 masks"),
        ({"input_boxes": [[0, 0, 1, 1]]}, 2000, 9, "image: expected sides of a ratio up to 200"),
    ],
)
def test_too_large_images_are_refused(given: dict[str, Any], width: int, height: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        checked(given, width, height)
