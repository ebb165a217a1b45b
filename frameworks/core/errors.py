"""Define the domain's errors. Each protocol maps this tree once to its own codes.

RoundhouseError
├── RequestError                 the caller can correct the request
│   ├── FieldError               one field of the request is wrong
│   │   ├── InvalidInput         the value of the field is invalid
│   │   ├── UnknownField         the route does not know the field
│   │   ├── SequenceNotFound     no sequence of the model has this id
│   │   └── SequenceLost         the state of the sequence was lost with the engine of the model
│   ├── ModelNotFound            no model has this name
│   ├── VersionNotFound          the model has no such version
│   ├── CollectionNotFound       no collection has this name
│   ├── RecordNotFound           the collection has no record with this id
│   ├── CollectionExists         a collection has this name already
│   └── ModelExists              the name is registered already
├── ModelUnavailable             the model exists and cannot answer now
│   ├── ModelLoading             the model is being loaded
│   ├── ModelUnloaded            an operator unloaded the model
│   ├── ModelFailed              the load or the device thread failed
│   │   ├── ModelLost            a process of the model has ended, so that it cannot run any more
│   │   └── SourceUnavailable    the hub, bucket or web server of the model cannot be reached
│   ├── Draining                 the server is shutting down, or the model is being unloaded
│   └── Overloaded               the queue is full
├── DeadlineExceeded             the request's deadline has passed
├── InvalidModel                 the model's files are damaged or not supported
└── OutOfMemory                  the model or the batch does not fit in memory
    └── EvictionNeeded           the model fits only if others are evicted
"""

import os
import re
from collections.abc import Callable, Iterable, Sequence, Set
from difflib import get_close_matches
from itertools import accumulate
from typing import ClassVar

from frameworks.core.names import meant_names

MAX_COMPARED_CHARACTERS = 128
"""Names above this are not compared with known ones."""
MAX_SHOWN_CHARACTERS = 200
"""Longer names are cut in messages."""


# Names of graph nodes and routes look like paths: only those below a folder at this machine's root are replaced.
_ROOTS = "|".join(map(re.escape, os.listdir("/")))
_PATH = re.compile(rf"(?<![\w.])/(?:{_ROOTS})(?![\w.-])(?:/[^\s/\"'`<>|:;,()\[\]]+)*/?")


def without_paths(text: str) -> str:
    """Return a text of a library or of the system with the last part of each path of this machine in its place."""
    return _PATH.sub(lambda found: found[0].rstrip("/").rpartition("/")[2], text)


class RoundhouseError(Exception):
    """An error with two messages: `message` for the log and for keys with the scope `manage`, `public` for all callers.

    Only `message` may have paths of the machine, or texts of libraries about its files.
    """

    def __init__(self, message: str, public: str | None = None) -> None:
        """`public`: None: the message itself is for all callers."""
        super().__init__(message)
        self.message = message
        self.public = message if public is None else public

    def rewrite(self, change: Callable[[str], str]) -> None:
        """Change both messages."""
        self.message, self.public = change(self.message), change(self.public)


class RequestError(RoundhouseError):
    """The request is wrong and the caller can correct it."""


class FieldError(RequestError):
    """One field of the request is wrong. The message is `field: reason`."""

    def __init__(self, field: str, reason: str) -> None:
        """`field`: its path in the request. `reason`: what was expected, what was found, and the remedy."""
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


def similar_names(name: str, known: Iterable[str], count: int) -> list[str]:
    """Return up to `count` known names that are similar to `name`, the most similar first.

    An empty list for a name above MAX_COMPARED_CHARACTERS: the time of a comparison grows with the length.
    """
    return get_close_matches(name, known, n=count) if len(name) <= MAX_COMPARED_CHARACTERS else []


class InvalidInput(FieldError):
    """The value of a field is invalid; the message names the field and the expected value."""


_MAX_LISTED_CHARACTERS = 160
"""Of the known names in a message: a body has tens of fields, a graph may have thousands of inputs."""


class UnknownField(FieldError):
    """The body has a field that the route does not know; the message names the nearest known field."""

    @classmethod
    def among(cls, name: str, known: Iterable[str], within: str = "") -> "UnknownField":
        """Return the error for a name that is not `known`: names in the order to show them. `within`: their path."""
        names = sorted(known) if isinstance(known, Set) else list(known)
        near = similar_names(name, names, 1)
        hint = f'did you mean "{within}{near[0]}"?' if near else f"known fields are {_listed(names, within)}"
        return cls(within + name[:MAX_SHOWN_CHARACTERS], f"unknown field; {hint}")


def _listed(names: Sequence[str], within: str) -> str:
    """Return the first names with the path of their parent, and where all of them are listed."""
    lengths = accumulate(len(f"{within}{name}, ") for name in names)
    count = max(1, sum(length <= _MAX_LISTED_CHARACTERS for length in lengths))
    listed, more = ", ".join(f"{within}{name[:MAX_SHOWN_CHARACTERS]}" for name in names[:count]), len(names) - count
    where = f" and {more} more; GET /openapi.json lists those of requests, GET /models of a model"
    return listed + where if more > 0 else listed


class ModelNotFound(RequestError):
    """No model has this name; the message has the names that differ by case or `org/`, or similar names."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        meant = meant_names(name, names)[:3]
        near = meant or similar_names(name, names, 3) or names[:10]
        hint = f"there is {', '.join(near)}" if near else "no model is registered"
        if len(meant) == 1:
            hint = f'did you mean "{meant[0]}"?'
        super().__init__(f'model "{name[:MAX_SHOWN_CHARACTERS]}" is not registered; {hint}')


class VersionNotFound(RequestError):
    """The model has no such version; the message lists its versions."""

    def __init__(self, name: str, version: str, known: Iterable[str]) -> None:
        super().__init__(
            f'model "{name}" has no version "{version[:MAX_SHOWN_CHARACTERS]}"; there is {", ".join(sorted(known))}'
        )


class CollectionNotFound(RequestError):
    """No collection has this name; the message lists similar names."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = similar_names(name, names, 3) or names[:10]
        hint = f"there is {', '.join(near)}" if near else "there is none"
        super().__init__(f'collection "{name[:MAX_SHOWN_CHARACTERS]}" does not exist; {hint}')


class RecordNotFound(RequestError):
    """The collection has no record with this id."""

    def __init__(self, collection: str, record: str) -> None:
        super().__init__(f'collection "{collection}" has no record "{record[:MAX_SHOWN_CHARACTERS]}"')


class SequenceNotFound(FieldError):
    """No sequence of the model has this id: it was not begun, has ended, or was idle for too long."""


class SequenceLost(FieldError):
    """The model was loaded again, or its process ended, and the states of its sequences with it."""


class CollectionExists(RequestError):
    """A collection of this name exists already."""

    def __init__(self, name: str) -> None:
        super().__init__(f'a collection named "{name}" exists already; choose another name')


class AdapterNotFound(RequestError):
    """The model has no such adapter; the message lists its adapters."""

    def __init__(self, name: str, adapter: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = similar_names(adapter, names, 3) or names[:10]
        hint = f"there is {', '.join(near)}" if near else "it has none"
        super().__init__(f'model "{name}" has no adapter "{adapter[:MAX_SHOWN_CHARACTERS]}"; {hint}')


class AdapterExists(RequestError):
    """The model has an adapter of this name already."""

    def __init__(self, name: str, adapter: str) -> None:
        super().__init__(
            f'model "{name}" has an adapter named "{adapter}" already; DELETE /models/{name}/adapters/{adapter} first '
            "or choose another name"
        )


class ModelExists(RequestError):
    """A model of this name is registered already."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f'a model named "{name}" is registered already; DELETE /models/{name} first or choose another name'
        )


class ModelUnavailable(RoundhouseError):
    """The model exists and cannot answer now; no work was done for the request."""


class ModelLoading(ModelUnavailable):
    """The model is being loaded; send the request again later."""


class ModelUnloaded(ModelUnavailable):
    """An operator unloaded the model; POST /models/{name}/load loads it again."""


class ModelFailed(ModelUnavailable):
    """The load of the model, its device thread or its process failed."""

    THREAD_ENDED: ClassVar = "its device thread ended"

    retry_after_s: float | None = None
    """Seconds after which a request is likely to be accepted; None where this is unknown."""

    def __init__(self, message: str, retry_after_s: float | None = None, public: str | None = None) -> None:
        super().__init__(message, public)
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s

    @classmethod
    def because(cls, what: str, error: RoundhouseError, retry_after_s: float | None = None) -> "ModelFailed":
        """Return the error for what another error caused. `what`: such as `model "m" failed to load`."""
        return cls(f"{what}: {error.message}", retry_after_s, f"{what}: {error.public}")

    @classmethod
    def thread_ended(cls, model: str) -> "ModelFailed":
        """Return the error for a model whose device thread has ended."""
        return cls(f'model "{model}": {cls.THREAD_ENDED}; load the model again')


def as_failed(error: Exception, what: str) -> RoundhouseError:
    """Return an error of ours as it is, and ModelFailed for another one; callers get its type. `what` raised it."""
    if isinstance(error, RoundhouseError):
        return error
    kind = type(error).__name__
    return ModelFailed(f"{kind}: {error}", public=f"{what} raised {kind}; the log of the server has the reason")


class ModelLost(ModelFailed):
    """A process of the model beside that of its engine has ended; its engine ends too, and has to be started again."""


class SourceUnavailable(ModelFailed):
    """The source of a model's files cannot be reached, and the cache has no copy; another load may succeed."""


class Draining(ModelUnavailable):
    """The server is shutting down and accepts no new requests, or an unload has ended the request."""

    REFUSED: ClassVar = "the server is shutting down; send the request to another server"
    UNANSWERED: ClassVar = "the server shut down before the request was answered; send it to another server"

    @classmethod
    def unloaded(cls, model: str) -> "Draining":
        """Return the error for a request that an unload has ended."""
        return cls(
            f'model "{model}" was unloaded before the request was answered; POST /models/{model}/load loads it again'
        )


class Overloaded(ModelUnavailable):
    """The queue of the model or of the server is full."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        """`retry_after_s`: seconds after which a request is likely to be accepted."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(RoundhouseError):
    """The request's deadline has passed; work that had not begun is not executed."""


class InvalidModel(RoundhouseError):
    """The model's files cannot be served; the message names the file, the reason and the remedy, `public` the kind."""

    PUBLIC: ClassVar = "its files are damaged or not supported; the log of the server has the reason"

    def __init__(self, message: str, public: str = PUBLIC) -> None:
        super().__init__(message, public)


class OutOfMemory(RoundhouseError):
    """The model, the batch or the rows of a collection do not fit; the message has the required and the free bytes."""


class EvictionNeeded(OutOfMemory):
    """The model fits only if other models are evicted, and this load may not evict them."""
