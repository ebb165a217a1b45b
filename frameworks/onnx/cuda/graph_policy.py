"""Decide which graphs of ONNX are captured as CUDA graphs, and for which numbers of rows. Pure."""

from bisect import bisect_left
from collections.abc import Collection

from frameworks.types import ModelSpec, TensorType

_CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")
# numpy has none of them, or not as plain bits.
_REFUSED_DTYPES = ("string", "bfloat16")
_OR_REMOVE = "or remove cuda_graph"


def buckets_of(max_rows: int) -> tuple[int, ...]:
    """Return the numbers of rows with a captured graph: the powers of two below `max_rows`, and `max_rows`."""
    powers = [1 << exponent for exponent in range(max_rows.bit_length()) if 1 << exponent < max_rows]
    return (*powers, max_rows)


def bucket_for(rows: int, buckets: tuple[int, ...]) -> int | None:
    """Return the smallest bucket that holds the rows; None for no rows, and for more than the largest holds."""
    if not 0 < rows <= buckets[-1]:
        return None
    return buckets[bisect_left(buckets, rows)]


def has_free_rows(spec: ModelSpec) -> bool:
    """Return whether the first dimension of some required input is free."""
    return any(
        declared.shape is not None and declared.shape[:1] == (-1,) for declared in spec.inputs if declared.required
    )


def reason_not_capturable(spec: ModelSpec, operators: Collection[str]) -> str | None:
    """Return why a graph cannot be captured, as `expected X, got Y; do Z`; None if its declaration allows it.

    A captured graph has the addresses and sizes of its tensors, and the host decides nothing while it runs.
    """
    if found := [each for each in _CONTROL_FLOW if each in operators]:
        return f"expected a graph without control flow, got {', '.join(found)}; export it without, {_OR_REMOVE}"
    required = [declared for declared in spec.inputs if declared.required]
    if not required:
        return "expected a graph with inputs, got none; remove cuda_graph"
    for declared in (*required, *spec.outputs):
        if not isinstance(declared.type, TensorType) or declared.type.dtype in _REFUSED_DTYPES:
            kind = f'"{declared.name}" of type {declared.type}'
            return f"expected tensors of the dtypes of numpy, got {kind}; remove cuda_graph"
    for declared in required:
        if declared.shape is None or -1 in declared.shape[1:]:
            shape = "undeclared shape" if declared.shape is None else f"shape {list(declared.shape)} (-1 is free)"
            return (
                f'expected inputs whose only free dimension is the first, the rows, got "{declared.name}" of {shape}; '
                f"export the graph with fixed sizes, {_OR_REMOVE}"
            )
    return None


def reason_not_captured(spec: ModelSpec) -> str | None:
    """Return why a graph cannot be captured after its warm-up, as `reason_not_capturable`; None if it can.

    Rows are added to fill a bucket, so no row may depend on the others.
    """
    if spec.unwarmed_because is not None:
        return (
            f"expected a graph that runs at warm-up, got one that was not run ({spec.unwarmed_because}); give it "
            f"values, {_OR_REMOVE}"
        )
    if has_free_rows(spec) and spec.unbatched_because is not None:
        return (
            f"expected rows that do not depend on each other, got a graph whose rows cannot share a run "
            f"({spec.unbatched_because}); export it with a fixed number of rows, {_OR_REMOVE}"
        )
    return None


def describe_graphs(buckets: tuple[int, ...]) -> str:
    """Return how `GET /models` shows the graphs of a model. `buckets`: empty for one graph of a fixed shape."""
    return f"up to {buckets[-1]} rows" if buckets else "the shape of its inputs"
