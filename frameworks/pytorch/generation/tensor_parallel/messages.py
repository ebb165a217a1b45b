"""The messages between rank 0 and a follower beside steps, on a socket of the two processes."""

import json
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from frameworks.core.errors import InvalidModel, ModelFailed, OutOfMemory, RoundhouseError
from frameworks.pytorch.generation.loading.served import GeneratorLoad
from frameworks.pytorch.generation.tensor_parallel.shard import Shard

MET = b"met"
"""A rank has reached the next point of the load, and waits for the others."""

_ERRORS = {each.__name__: each for each in (InvalidModel, ModelFailed, OutOfMemory)}


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to a follower. `load`: for the device of its rank. `group_file`: as of RankGroup."""

    load: GeneratorLoad
    shard: Shard
    group_file: Path


def send_error(connection: Connection, error: BaseException) -> None:
    """Tell rank 0 why this rank ends. Does nothing where rank 0 has ended."""
    name = type(error).__name__
    if not isinstance(error, RoundhouseError):
        message = f"{name}: {error}"
        state = ["ModelFailed", message, f"a rank raised {name}; the log of the server has the reason"]
    else:
        known = next((each.__name__ for each in type(error).__mro__ if each.__name__ in _ERRORS), "ModelFailed")
        state = [known, error.message, error.public]
    with suppress(OSError):
        connection.send_bytes(json.dumps(state).encode())


def read_error(message: bytes) -> RoundhouseError:
    """Return the error of `send_error`."""
    name, text, public = json.loads(message)
    kind = _ERRORS[name]
    return kind(text, public=public)
