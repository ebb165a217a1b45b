"""Parameters of requests: names, types and bounds."""

from typing import Any

import pytest

from frameworks.core.errors import FieldError, InvalidInput, UnknownField
from frameworks.tasks.parameters import MAX_CHARACTERS, check_parameters
from frameworks.tasks.table import TASKS
from frameworks.tasks.types import TaskParameter, TaskSpec

SPEC = TaskSpec(
    "any",
    ("text",),
    (
        TaskParameter("flag", "boolean", False),
        TaskParameter("top_k", "integer", 5, 1, 1000),
        TaskParameter("threshold", "number", 0.5, 0.0, 1.0),
        TaskParameter("name", "string", maximum=10),
        TaskParameter("kind", "string", choices=("first", "last")),
        TaskParameter("template", "template", "It is {}.", maximum=20),
        TaskParameter("labels", "strings", minimum=1, maximum=3),
        TaskParameter("points", "numbers", maximum=6),
        TaskParameter("options", "object", maximum=3),
    ),
)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"flag": True, "top_k": 1000, "threshold": 1, "name": "", "kind": "last"},
        {"template": "{{}} {}", "labels": ["a", ""], "points": [[1, 2.5], [3, 4]], "options": {"a": None, "b": [True]}},
        {"top_k": 1, "points": []},
    ],
)
def test_check_parameters_returns_valid_values(given: dict[str, Any]) -> None:
    assert check_parameters(SPEC, given) == given


def test_check_parameters_leaves_null_out() -> None:
    assert check_parameters(SPEC, {"top_k": None, "flag": True}) == {"flag": True}
    assert check_parameters(SPEC, None) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "parameters: expected an object, got a list of 0; send parameters by their names"),
        ({"flag": 1}, "parameters.flag: expected true or false, got 1; change it, or leave it out"),
        ({"top_k": True}, "parameters.top_k: expected an integer from 1 to 1000, got true; change it, or leave it out"),
        ({"top_k": 1.5}, "parameters.top_k: expected an integer from 1 to 1000, got 1.5; change it, or leave it out"),
        ({"top_k": 0}, "parameters.top_k: expected an integer from 1 to 1000, got 0; change it, or leave it out"),
        ({"top_k": 10**400}, "parameters.top_k: expected an integer from 1 to 1000, got a number of many digits"),
        ({"threshold": float("nan")}, "parameters.threshold: expected a number from 0 to 1, got nan"),
        ({"threshold": float("inf")}, "parameters.threshold: expected a number from 0 to 1, got inf"),
        ({"threshold": 10**400}, "parameters.threshold: expected a number from 0 to 1, got a number of many digits"),
        ({"threshold": "0.5"}, 'parameters.threshold: expected a number from 0 to 1, got "0.5"'),
        ({"threshold": False}, "parameters.threshold: expected a number from 0 to 1, got false"),
        ({"name": "a" * 11}, 'parameters.name: expected a string of 0 to 10 characters, got "aaaaaaaaaaa"'),
        ({"name": "a" * 41}, "parameters.name: expected a string of 0 to 10 characters, got a string of 41 characters"),
        ({"name": "\ud800"}, "parameters.name: not valid Unicode: it holds half of a surrogate pair"),
        ({"kind": "middle"}, 'parameters.kind: expected one of "first", "last", got "middle"'),
        ({"labels": "a"}, 'parameters.labels: expected a list of 1 to 3 strings, got "a"'),
        ({"labels": []}, "parameters.labels: expected a list of 1 to 3 strings, got a list of 0"),
        ({"labels": ["a"] * 4}, "parameters.labels: expected a list of 1 to 3 strings, got a list of 4"),
        ({"labels": ["a", 1]}, "parameters.labels[1]: expected a string of up to 10000 characters, got 1; change it"),
        (
            {"labels": ["a" * (MAX_CHARACTERS + 1)]},
            "parameters.labels[0]: expected a string of up to 10000 characters, got a string of 10001 characters",
        ),
        ({"points": [1] * 7}, "parameters.points: expected a list of 0 to 6 numbers, got a list of 7"),
        ({"points": [[1, 2], [3, 4, 5]]}, "parameters.points: expected a list of 0 to 6 numbers, got a list of 2"),
        ({"points": [[float("nan")]]}, "parameters.points: expected finite numbers, texts or booleans, got nan"),
        ({"points": [[[[[1]]]]]}, "parameters.points: expected up to 4 lists or objects in each other, got more"),
        ({"options": [1]}, "parameters.options: expected an object of 0 to 3 values, got a list of 1"),
        ({"options": {"a": [1, 2, 3]}}, "parameters.options: expected an object of 0 to 3 values, got an object"),
    ],
)
def test_check_parameters_refuses_other_values(given: object, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_parameters(SPEC, given)
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize(
    "template", ["no field", "{} {}", "{0}", "{:1000000000}", "{!r}", "{.__class__}", "{label}", "{", "{{}}"]
)
def test_template_with_another_field_is_refused(template: str) -> None:
    """A width such as `{:1000000000}` would have `str.format` fill the memory."""
    with pytest.raises(InvalidInput, match=r"characters with one \{\} for the label, got"):
        check_parameters(SPEC, {"template": template})


def test_labels_are_bounded_in_all_characters() -> None:
    labels = ["a" * MAX_CHARACTERS] * 11
    with pytest.raises(InvalidInput, match=r"candidate_labels: expected up to 100000 characters in all, got 110000"):
        check_parameters(TASKS["zero-shot-classification"], {"candidate_labels": labels})


@pytest.mark.parametrize(
    ("task", "name", "message"),
    [
        ("object-detection", "treshold", 'parameters.treshold: unknown field; did you mean "parameters.threshold"?'),
        ("object-detection", "zzz", "parameters.zzz: unknown field; known fields are parameters.threshold"),
        ("depth-estimation", "threshold", "parameters.threshold: unknown field; depth-estimation has no parameters"),
    ],
)
def test_unknown_parameter_is_named(task: str, name: str, message: str) -> None:
    with pytest.raises(UnknownField) as refused:
        check_parameters(TASKS[task], {name: 1})
    assert refused.value.message.startswith(message)


@pytest.mark.parametrize("given", [None, {}, {"candidate_labels": None}])
def test_missing_required_parameter_is_named(given: object) -> None:
    with pytest.raises(FieldError) as refused:
        check_parameters(TASKS["zero-shot-classification"], given, "body.parameters")
    assert refused.value.message == (
        "body.parameters.candidate_labels: expected a list of 1 to 1000 strings, got nothing; the task needs it"
    )
