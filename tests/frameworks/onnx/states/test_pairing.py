"""Find pairs of inputs and outputs that are a state, by names, dtypes and shapes."""

import pytest

from frameworks.core.errors import InvalidModel
from frameworks.onnx.states.pairing import find_pairs
from frameworks.types import TensorType, ValueSpec


def value(name: str, shape: tuple[int, ...] | None = (-1, 4), dtype: str = "float32") -> ValueSpec:
    return ValueSpec(name, TensorType(dtype, shape))


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        ("h", "hn"),
        ("h0", "hn"),
        ("h_0", "h_n"),
        ("state", "stateN"),
        ("stateIn", "stateOut"),
        ("x", "x_out"),
        ("past_x", "present_x"),
        ("past_key_values.0.key", "present.0.key"),
        ("cached_len_0", "new_cached_len_0"),
        ("prev_state", "next_state"),
        ("c_prev", "c"),
        ("initial_h", "h_out"),
    ],
)
def test_related_names_are_a_pair(given: str, returned: str) -> None:
    assert find_pairs([value("audio"), value(given)], [value("prob"), value(returned)]) == {given: returned}


def test_numbered_states_are_paired_by_number() -> None:
    names = [f"cached_len_{number}" for number in range(12)]
    pairs = find_pairs([value(name) for name in names], [value(f"new_{name}") for name in reversed(names)])
    assert pairs == {name: f"new_{name}" for name in names}


def test_undeclared_dimensions_fit_any() -> None:
    assert find_pairs([value("state", (2, -1, 128))], [value("stateN", (-1, -1, -1))]) == {"state": "stateN"}
    assert find_pairs([value("state", (2, -1, 128))], [value("stateN", None)]) == {"state": "stateN"}


def test_marked_output_wins_over_copy() -> None:
    assert find_pairs([value("past_h")], [value("h"), value("present_h")]) == {"past_h": "present_h"}


@pytest.mark.parametrize(
    ("given", "returned"),
    [
        (value("input"), value("output")),
        (value("h"), value("y")),
        (value("h"), value("hn", dtype="float16")),
        (value("h"), value("hn", (-1, 5))),
        (value("h"), value("hn", (-1, 4, 1))),
        (value("h", dtype="string"), value("hn", dtype="string")),
    ],
)
def test_unrelated_values_are_refused(given: ValueSpec, returned: ValueSpec) -> None:
    with pytest.raises(InvalidModel, match="state: expected an input and an output of one dtype and shape"):
        find_pairs([given], [returned])


@pytest.mark.parametrize(
    ("inputs", "outputs", "shown"),
    [
        (["h"], ["hn", "h_out"], '"h" may be "hn", "h_out"'),
        (["h", "h0"], ["hn"], '"hn" may be "h", "h0"'),
    ],
)
def test_ambiguous_values_are_refused(inputs: list[str], outputs: list[str], shown: str) -> None:
    with pytest.raises(InvalidModel, match="state: expected one output for each input") as raised:
        find_pairs([value(name) for name in inputs], [value(name) for name in outputs])
    assert shown in raised.value.message
    assert "name the pairs in [[models.onnx_models.state]]" in raised.value.message
