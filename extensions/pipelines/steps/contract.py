"""Define the contract of a built-in step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, Protocol

from extensions.pipelines.kinds import AnyType, Kind, Values
from frameworks.types import TensorType

NUMBERS = TensorType("float32", None)
MAX_ROWS = 1000
"""Rows of the result of a step that makes as many as the data need."""


ANY: Final = AnyType()


class Port(NamedTuple):
    """An input of a step. `kind`: the type that it reads."""

    kind: Kind
    required: bool = True


@dataclass(frozen=True)
class StepFault(Exception):
    """An option or an input of a step is wrong. `key`: of the step, such as `axis`, or `inputs.values`."""

    key: str
    message: str


class BuiltinStep(Protocol):
    """A step that computes with numpy, without a model. `options`: the keys of the entry that it reads.

    `is_slow`: it runs on a thread. An instance is used by several requests at once.
    """

    options: ClassVar[frozenset[str]]
    is_slow: ClassVar[bool]

    def ports(self, names: tuple[str, ...]) -> Mapping[str, Port]:
        """Return the inputs that the step reads. `names`: those that are wired."""
        ...

    def outputs(self, given: Mapping[str, Kind]) -> Mapping[str, Kind]:
        """Return the types of the outputs for types of inputs that fit the ports. Raises StepFault."""
        ...

    def run(self, values: Values) -> Values:
        """Compute the outputs. Raises InvalidInput where the values do not fit each other."""
        ...
