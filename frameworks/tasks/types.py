"""Describe tasks of transformers' pipelines: inputs, parameters, requests and answers."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

InputKind = Literal["text", "image", "audio", "video"]
ParameterType = (
    Literal["boolean", "integer", "number", "string", "template", "strings", "numbers", "object"]
    | Literal["boolean_or_string", "number_or_numbers"]
)


@dataclass(frozen=True, slots=True)
class TaskParameter:
    """A parameter of a request, by transformers' name. `strings`, `numbers`: a list, for `numbers` nested or flat.

    `template`: a string with `{}`. `number_or_numbers`: a list of up to ten, each within the bounds. `default`: None
    where transformers decides. `minimum`, `maximum`: of a number, of the number of elements of a list, or of the
    characters of a string. `choices`: of a string; empty for any.
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
    """The inputs and parameters of a task. `name`: of the task, as transformers has it.

    `inputs`: the fields of an input, of which `required` must be given; the first one is that of an input that is no
    object. `members`: further fields of an input that is an object, such as `question` and `context`. `has_labels`:
    whether the model predicts labels of its own. `labels`: these, by index. `files_per_input`: images of one input.
    `max_inputs`: of one request, `max_characters`: of one text; None for the usual bounds. `random_without`: the
    parameter without which a sampled answer differs from that of an equal request; empty where no answer is sampled.
    """

    name: str
    inputs: tuple[InputKind, ...]
    parameters: tuple[TaskParameter, ...] = ()
    required: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    has_labels: bool = False
    files_per_input: int = 1
    labels: tuple[str, ...] = ()
    max_inputs: int | None = None
    max_characters: int | None = None
    random_without: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields of one input."""
        return tuple(dict.fromkeys((*self.inputs, *self.members)))

    def parameter(self, name: str) -> TaskParameter | None:
        """Return the parameter of this name; None for a task without it."""
        return next((each for each in self.parameters if each.name == name), None)

    def is_random(self, parameters: Mapping[str, Any]) -> bool:
        """Return whether equal requests may have different answers. A text at temperature 0 is not sampled."""
        if not self.random_without or self.random_without in parameters:
            return False
        temperature = self.parameter("temperature")
        return temperature is None or any(parameters.get("temperature", temperature.default))


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """Inputs for a model with a TaskSpec.

    `inputs`: each by field: `text` a string, `image`, `audio` and `video` the bytes of a file, other members as JSON.
    `parameters`: checked by `check_parameters`; those that are absent have their defaults. `is_random`: whether equal
    requests have different answers.
    """

    inputs: list[dict[str, Any]]
    parameters: dict[str, Any]
    is_random: bool = False


@dataclass(frozen=True, slots=True)
class TaskAnswer:
    """`predictions`: for each input what the pipeline of the task returns, as JSON values.

    Pictures are PNG files in base64, sounds are WAV files.
    """

    predictions: list[Any]


class TaskItem(NamedTuple):
    """One row of a run. `value`: what the framework needs of it. `length`: its cost: tokens, samples or pixels.

    `shape`: items of one shape share a run; None where an item runs alone. `nbytes`: of its tensors. `num_tokens`: of a
    text; 0 for other inputs.
    """

    value: Any
    length: int
    shape: Hashable | None
    nbytes: int
    num_tokens: int = 0


class TaskPipeline(Protocol):
    """The pre- and postprocessing of a model with a TaskSpec. Any thread may call it."""

    def prepare(self, task_input: dict[str, Any], parameters: dict[str, Any]) -> list[TaskItem]:
        """Return the rows of one input. Raises InvalidInput."""
        ...

    def finish(self, outputs: Sequence[Any], parameters: dict[str, Any]) -> Any:
        """Return the prediction of one input from the outputs of its rows, as JSON values. Raises InvalidInput."""
        ...
