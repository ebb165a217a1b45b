"""Steps that are Python functions of installed packages, by entry point."""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, ClassVar

import numpy as np
import structlog

from extensions.pipelines.kinds import ImagesType, Kind, Values, fits, parse_kind
from extensions.pipelines.settings import StepEntry
from extensions.pipelines.steps.contract import ANY, Port, StepFault
from frameworks.core.errors import InvalidInput, ModelFailed, RoundhouseError, similar_names
from frameworks.types import NUMPY_DTYPES, TensorType

log = structlog.get_logger(__name__)

GROUP = "roundhouse.steps"
"""The group of entry points. Only those that the configuration names are imported."""


def installed_functions() -> list[str]:
    """Return the names of the entry points of all installed packages."""
    return [each.name for each in entry_points(group=GROUP)]


class FunctionStep:
    """Call a function with the inputs by name; it returns its outputs by name. It runs on a thread, several at once.

    It gets numpy arrays, texts as an object array of str, and images as a list of bytes or of uint8 arrays. It raises
    ValueError or InvalidInput for inputs that are wrong.
    """

    options: ClassVar = frozenset({"outputs"})
    is_slow: ClassVar = True

    def __init__(self, entry: StepEntry) -> None:
        assert entry.function is not None
        self._name = entry.function
        self._kinds: dict[str, Kind] = {}
        if entry.outputs is None:
            raise StepFault(
                "outputs", 'expected the types of its outputs, got none; set it, like { y = "float32[-1]" }'
            )
        for name, text in entry.outputs:
            try:
                self._kinds[name] = parse_kind(text)
            except ValueError as error:
                raise StepFault(f"outputs.{name}", f'{error}, got "{text[:200]}"') from None
        self._function = _load(self._name)

    def ports(self, names: tuple[str, ...]) -> Mapping[str, Port]:
        return {name: Port(ANY) for name in names}

    def outputs(self, given: Mapping[str, Kind]) -> Mapping[str, Kind]:
        return self._kinds

    def run(self, values: Values) -> Values:
        try:
            answer = self._function(**values)
        except RoundhouseError:
            raise
        except ValueError as error:
            raise InvalidInput("inputs", str(error)[:500]) from error
        except Exception as error:
            log.exception("the function of a step failed", function=self._name)
            raise ModelFailed("its function failed; the log of the server has the reason") from error
        if not isinstance(answer, Mapping):
            raise self._wrong(f"expected a dict of {', '.join(self._kinds)}, got {type(answer).__name__}")
        return {name: self._checked(name, kind, answer) for name, kind in self._kinds.items()}

    def _checked(self, name: str, kind: Kind, answer: Mapping[str, Any]) -> Any:
        """Return an output of the declared type. Raises ModelFailed."""
        if name not in answer:
            raise self._wrong(f"expected the output {name}, got {', '.join(map(str, answer))}")
        value = answer[name]
        if isinstance(kind, ImagesType):
            return list(value)
        assert isinstance(kind, TensorType)
        try:
            array = np.asarray(value, dtype=NUMPY_DTYPES[kind.dtype])
        except (ValueError, TypeError) as error:
            raise self._wrong(f"{name}: expected {kind.dtype}, got another type ({error})") from error
        if not fits(kind, TensorType(kind.dtype, array.shape)):
            raise self._wrong(f"{name}: expected the shape {kind.shape}, got {array.shape}")
        return array

    def _wrong(self, reason: str) -> ModelFailed:
        log.error("the function of a step returned a wrong value", function=self._name, reason=reason)
        return ModelFailed("its function returned a wrong value; the log of the server has the reason")


def _load(name: str) -> Callable[..., Any]:
    """Import the function of an entry point. Raises StepFault."""
    found = [each for each in entry_points(group=GROUP) if each.name == name]
    if not found:
        near = similar_names(name, installed_functions(), 1)
        hint = f'did you mean "{near[0]}"?' if near else "install the package that has it"
        raise StepFault("function", f'expected an entry point of the group {GROUP}, got "{name[:200]}"; {hint}')
    try:
        function = found[0].load()
    except Exception as error:
        log.exception("the function of a step cannot be imported", function=name)
        raise StepFault("function", f"expected a function that can be imported, got {type(error).__name__}") from error
    if not callable(function):
        raise StepFault("function", f'expected a function, got "{name}" of type {type(function).__name__}')
    return function  # type: ignore[no-any-return]
