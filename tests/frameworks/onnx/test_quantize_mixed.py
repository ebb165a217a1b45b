"""The number of MatMuls in fp32, and the estimate of the error of each."""

import numpy as np
import pytest

from frameworks.onnx.quantization.mixed import Sensitivity, find_fewest, outliers, round_input, round_weight
from tests.support.models import onnx_graphs
from tests.support.models.onnx_perceptrons import dynamically_rounded

ERRORS = [5.0, 3.0, 1.0, 0.5, 0.3, 0.2]


@pytest.mark.parametrize("aim", [0.0, 0.96, 0.99, 0.9979, 0.999])
def test_minimum_stays_fp32_for_additive_errors(aim: float) -> None:
    """Each remaining unit of error adds a tenth of a percent of distance."""

    def worst_cosine(count: int) -> float:
        return 1 - sum(ERRORS[count:]) / 1000

    count = find_fewest(worst_cosine, ERRORS, aim)
    assert worst_cosine(count) >= aim
    assert count == 0 or worst_cosine(count - 1) < aim


@pytest.mark.parametrize("enough", range(6))
def test_minimum_is_found_for_other_errors(enough: int) -> None:
    asked: list[int] = []

    def worst_cosine(count: int) -> float:
        asked.append(count)
        return 0.999 if count >= enough else 0.98

    count = find_fewest(worst_cosine, [1.0] * 6, 0.99)
    assert enough <= count <= enough + 1
    assert len(asked) == len(set(asked))


def test_all_stay_fp32_after_few_trials() -> None:
    asked: list[int] = []

    def hopeless(count: int) -> float:
        asked.append(count)
        return 0.5

    assert find_fewest(hopeless, ERRORS * 20, 0.99) == 120
    assert len(asked) <= 5


def test_outliers_are_far_from_median() -> None:
    order = [Sensitivity("far", 90.0, 10), *(Sensitivity(f"n{i}", 1.0 + i / 10, 1) for i in range(9))]
    assert outliers(order) == set()
    assert outliers([Sensitivity("far", 900.0, 10), *order[1:]]) == {"far"}


def test_inputs_are_rounded_as_in_onnxruntime() -> None:
    session = onnx_graphs.session(dynamically_rounded())
    random = np.random.default_rng(0)
    for low, high in ((-1, 3), (0.5, 2), (-4, -1), (0, 0)):
        x = random.uniform(low, high, (7, 5)).astype(np.float32)
        [theirs] = session.run(None, {"x": x})
        np.testing.assert_allclose(round_input(x), theirs, atol=1e-5)


def test_weights_are_rounded_per_output_channel() -> None:
    weight = np.array([[1.27, 100.0], [-0.634, 0.3]], np.float32)
    np.testing.assert_allclose(round_weight(weight), [[1.27, 100.0], [-0.63, 0.0]], rtol=1e-5, atol=1e-6)
