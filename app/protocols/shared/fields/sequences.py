"""Read the place of a request in a sequence: the id, and whether the request is the first step, or the last one."""

from app.protocols.shared.json.body import describe_value
from frameworks.core.errors import InvalidInput
from frameworks.types import SequenceId, SequenceStep

MAX_ID = 2**64 - 1
MAX_ID_CHARACTERS = 128
"""As in Triton."""


def read_step(number: object, start: object, end: object, names: tuple[str, str, str]) -> SequenceStep:
    """Return the step that the values of three fields describe. `names`: of the fields. Raises InvalidInput."""
    return SequenceStep(_read_id(number, names[0]), _read_flag(start, names[1]), _read_flag(end, names[2]))


def _read_id(value: object, field: str) -> SequenceId:
    if type(value) is int and 1 <= value <= MAX_ID:
        return value
    if type(value) is str and 1 <= len(value) <= MAX_ID_CHARACTERS:
        return value
    shown = f"a string of {len(value)} characters" if isinstance(value, str) else describe_value(value)
    raise InvalidInput(
        field,
        f"expected an integer from 1 to 2^64 - 1, or a string of 1 to {MAX_ID_CHARACTERS} characters, got "
        f"{'nothing' if value is None else shown}; send the id of the sequence",
    )


def _read_flag(value: object, field: str) -> bool:
    if value is None or type(value) is bool:
        return bool(value)
    raise InvalidInput(field, f"expected true or false, got {describe_value(value)}")
