"""Describe tasks of transformers' pipelines: what a model reads, its parameters, requests and answers."""

from dataclasses import dataclass
from typing import Any, Literal

InputKind = Literal["text", "image", "audio", "video"]
ParameterType = Literal["boolean", "integer", "number", "string", "strings", "numbers", "object"]


@dataclass(frozen=True, slots=True)
class TaskParameter:
    """A parameter of a request, by transformers' name. `strings`, `numbers`: a list, for `numbers` nested or flat.

    `default`: None where transformers decides. `minimum`, `maximum`: of a number, or of the number of elements of a
    list. `choices`: of a string; empty for any.
    """

    name: str
    type: ParameterType
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    description: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What a model of a task reads. `name`: of the task, as transformers has it.

    `inputs`: the fields of an input, of which `required` must be given; the first one is that of an input that is no
    object. `members`: further fields of an input that is an object, such as `question` and `context`. `labels`: of the
    model, by index; empty for a task without them.
    """

    name: str
    inputs: tuple[InputKind, ...]
    parameters: tuple[TaskParameter, ...] = ()
    required: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """Inputs for a model with a TaskSpec.

    `inputs`: each by field: `text` a string, `image`, `audio` and `video` the bytes of a file, other members as JSON.
    `parameters`: checked by `check_parameters`; those that are absent have their defaults.
    """

    inputs: list[dict[str, Any]]
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """`predictions`: for each input what the pipeline of the task returns, as JSON values; pictures as base64 PNG."""

    predictions: list[Any]
