"""Settings of models with a state: `[[models.onnx_models.state]]`."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from memory.settings import SETTINGS_RULES

MAX_STATES = 1024
"""States of one model. Streaming encoders have several for each layer."""
_MAX_RANK = 32
_MAX_INITIAL = 1_000_000


def _checked_initial(value: object) -> Any:
    """Return a number, or nested tuples of numbers. Raises ValueError."""
    count = 0

    def nested(item: object, depth: int) -> Any:
        nonlocal count
        if isinstance(item, list | tuple) and depth < _MAX_RANK:
            return tuple(nested(each, depth + 1) for each in item)
        count += 1
        if type(item) not in (int, float, bool) or count > _MAX_INITIAL:
            raise ValueError(f"expected a number, or nested lists of at most {_MAX_INITIAL} numbers")
        return item

    return nested(value, 0)


def _checked_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    if shape.count(-1) > 1:
        raise ValueError("expected at most one -1, at the axis of the rows")
    return shape


Size = Annotated[int, Field(ge=-1, le=2**31 - 1)]


class StateEntry(BaseModel):
    """One `[[models.onnx_models.state]]` entry: an output that is the input of the next step."""

    model_config = SETTINGS_RULES

    input: Annotated[str, Field(min_length=1)]
    """Input of the graph that takes the state."""
    output: Annotated[str, Field(min_length=1)]
    """Output of the graph with the state for the next step."""
    initial: Annotated[Any, PlainValidator(_checked_initial, json_schema_input_type=float | list[Any])] = 0
    """State of the first step: a number for all elements, or nested lists of the shape for one row."""
    shape: (
        Annotated[tuple[Size, ...], Field(strict=False, max_length=_MAX_RANK), AfterValidator(_checked_shape)] | None
    ) = None
    """Shape of the first state, with -1 at the axis of the rows. None: as the graph declares it."""
    batch_axis: Annotated[int, Field(ge=0, lt=_MAX_RANK)] | None = None
    """Axis of the rows. None: the free dimension, or of several that with the name of the rows of another input."""


def _auto_or_tables(value: object, tables: ValidatorFunctionWrapHandler) -> Any:
    """Return `"auto"` as it is, and tables as `tables` validates them. Raises ValueError."""
    if value == "auto":
        return value
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_STATES:
        raise ValueError(f'expected "auto", or 1 to {MAX_STATES} tables with input and output')
    return tables(value)


def _as_written(states: "States") -> Any:
    return states if isinstance(states, str) else [each.model_dump() for each in states]


def without_other_keys(value: Any, info: ValidationInfo) -> Any:
    """Return the value of `state`. Raises ValueError beside a key that a model with a state cannot have."""
    given = info.data
    excluded = {
        "sequence_axis": "padding would change the states",
        "quantized": "the comparison with the original has no sequences",
        "cuda_graph": "captured graphs have no states",
        "image": "images have no sequence",
        "cache": "equal steps have different answers",
    }
    for key, because in excluded.items():
        if given.get(key):
            raise ValueError(f"expected no {key} beside it, as {because}; remove one of them")
    if given.get("kernels", "onnxruntime") != "onnxruntime":
        raise ValueError('expected kernels = "onnxruntime" beside it; remove kernels')
    device = given.get("device")
    if isinstance(device, tuple) or device == "cuda:*":
        raise ValueError("expected one device beside it, as each sequence has its state in one process; name one")
    return value


if TYPE_CHECKING:
    States = Literal["auto"] | tuple[StateEntry, ...]
else:
    # A union would report each error once for each of its types.
    States = Annotated[
        tuple[StateEntry, ...],
        Field(strict=False),
        WrapValidator(_auto_or_tables),
        PlainSerializer(_as_written),
    ]
