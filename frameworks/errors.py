"""What can go wrong, in the words of the domain. Each wire maps this tree once to its own codes.

RoundhouseError
├── RequestError                 the caller can mend it
│   ├── InvalidInput             a field's value is not what the model wants
│   ├── UnknownField             a field that the body does not have
│   ├── ModelNotFound
│   ├── VersionNotFound
│   └── ModelExists
├── ModelUnavailable             the model is known and cannot answer now
│   ├── ModelLoading
│   │   └── ModelAbsent          it can be loaded; the manager does, and the caller never sees this
│   ├── ModelUnloaded            by a caller's order
│   ├── ModelFailed              its load or its thread failed
│   ├── Draining                 the server is going down
│   └── Overloaded               the queue is at its bound
├── DeadlineExceeded             the time that the caller gave has passed
├── InvalidModel                 the files of a model are not what they claim, or not what we serve
└── OutOfMemory                  the model or the batch does not fit
    └── NoRoomNow                it would, if others left
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frameworks.models.version import ModelVersion


class RoundhouseError(Exception):
    """The root of every error that a caller may see; the message is written for the caller."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class RequestError(RoundhouseError):
    """The request is wrong and the caller can mend it."""


class InvalidInput(RequestError):
    """The value of one field is wrong. The message names the field, what came and what is wanted."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class UnknownField(RequestError):
    """A field that the body does not have; the message names the nearest field that it does have."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field

    @classmethod
    def among(cls, name: str, known: Iterable[str], within: str = "") -> "UnknownField":
        """The error for a name that is not one of the `known`. `within`: where they all stand, as `inputs.`."""
        names = sorted(known)
        near = get_close_matches(name, names, n=1)
        paths = [within + each for each in names]
        hint = f'did you mean "{within}{near[0]}"?' if near else f"known fields are {', '.join(paths)}"
        return cls(within + name, f"unknown field; {hint}")


class ModelNotFound(RequestError):
    """No model has this name; the message lists near names."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = get_close_matches(name, names, n=3) or names[:10]
        hint = f"there is {', '.join(near)}" if near else "no model is registered"
        super().__init__(f'model "{name[:200]}" is not registered; {hint}')


class VersionNotFound(RequestError):
    """The model has no such version; the message lists those that it has."""

    def __init__(self, name: str, version: str, known: Iterable[str]) -> None:
        super().__init__(f'model "{name}" has no version "{version[:200]}"; there is {", ".join(sorted(known))}')


class ModelExists(RequestError):
    """The name is taken."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f'a model named "{name}" is registered already; DELETE /models/{name} first or choose another name'
        )


class ModelUnavailable(RoundhouseError):
    """The model is known and cannot answer now. Raised before any work is done for the request."""


class ModelLoading(ModelUnavailable):
    """The model is on its way; ask again."""


class ModelAbsent(ModelLoading):
    """The version is not loaded, and whoever asks for it may wait for that. `timeout_ms`: of the request, if known."""

    def __init__(self, version: "ModelVersion") -> None:
        super().__init__(f"{version} is not loaded")
        self.version = version
        self.timeout_ms: float | None = None


class ModelUnloaded(ModelUnavailable):
    """A caller unloaded the model; it answers again after POST /models/{name}/load."""


class ModelFailed(ModelUnavailable):
    """The model's load or its device thread failed."""


class Draining(ModelUnavailable):
    """The server is going down and takes no new work."""


class Overloaded(ModelUnavailable):
    """The model's queue is at its bound. `retry_after_s`: seconds after which a place is likely free."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(RoundhouseError):
    """The request's deadline has passed; what of it had not begun is never run."""


class InvalidModel(RoundhouseError):
    """The files of a model cannot be served; the message says which file, why, and what to do."""


class OutOfMemory(RoundhouseError):
    """The model or the batch does not fit; the message says what was asked and what there is."""


class NoRoomNow(OutOfMemory):
    """The model would fit if others left, and they may not be asked to."""
