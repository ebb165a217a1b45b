"""Steps over tensors: softmax, top_k, labels, normalize, concat, threshold."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from extensions.pipelines.kinds import Kind, PredictionsType, Values
from extensions.pipelines.settings import StepEntry
from extensions.pipelines.steps.contract import MAX_ROWS, NUMBERS, Port, StepFault
from frameworks.core.errors import InvalidInput
from frameworks.types import Array, TensorType

_ROWS = TensorType("float32", (-1, -1))
_MANY_COLUMNS = 128
"""Of rows whose best columns are selected before they are sorted: for 1000 columns this takes a quarter of the time."""
_SMALLEST = 1e-12
"""The least norm: rows of zeros stay zeros."""


class Softmax:
    """Probabilities along an axis. `values`: float32; the output has the same shape."""

    options: ClassVar = frozenset({"axis"})
    is_slow: ClassVar = False

    def __init__(self, entry: StepEntry) -> None:
        self._axis = -1 if entry.axis is None else entry.axis

    def ports(self, names: tuple[str, ...]) -> Mapping[str, Port]:
        return {"values": Port(NUMBERS)}

    def outputs(self, given: Mapping[str, Kind]) -> Mapping[str, Kind]:
        _check_axis(given["values"], self._axis)
        return {"values": given["values"]}

    def run(self, values: Values) -> Values:
        numbers = values["values"]
        _check_has_axis(numbers, self._axis)
        if not numbers.size:
            return {"values": numbers}
        if numbers.size == numbers.shape[self._axis]:
            # One row: whole arrays and scalars take 30 % less time than an axis.
            odds = numbers - numbers.item(numbers.argmax())
            np.exp(odds, odds)
            odds /= float(np.add.reduce(odds, None))
            return {"values": odds}
        odds = np.exp(numbers - numbers.max(axis=self._axis, keepdims=True))
        odds /= odds.sum(axis=self._axis, keepdims=True)
        return {"values": odds}


class TopK:
    """The best columns of each row by falling value: `values` float32 [n, k], `indices` int64 [n, k]."""

    options: ClassVar = frozenset({"top_k"})
    is_slow: ClassVar = False

    def __init__(self, entry: StepEntry) -> None:
        if entry.top_k is None:
            raise StepFault("top_k", "expected an integer of 1 or more, got none; set it")
        self._top_k = entry.top_k

    def ports(self, names: tuple[str, ...]) -> Mapping[str, Port]:
        return {"values": Port(_ROWS)}

    def outputs(self, given: Mapping[str, Kind]) -> Mapping[str, Kind]:
        kind = given["values"]
        assert isinstance(kind, TensorType)
        columns = -1 if kind.shape is None else kind.shape[1]
        if columns != -1 and self._top_k > columns:
            raise StepFault("top_k", f"expected at most {columns}, the columns of values, got {self._top_k}")
        rows = -1 if kind.shape is None else kind.shape[0]
        shape = (rows, -1 if columns == -1 else self._top_k)
        return {"values": TensorType("float32", shape), "indices": TensorType("int64", shape)}

    def run(self, values: Values) -> Values:
        rows = values["values"]
        indices = best_columns(rows, self._top_k)
        return {"values": _taken(rows, indices), "indices": indices}


class Labels:
    """Names for the columns of `scores`, float32 [n, labels]; or for `indices`, int64 [n, k], with their `scores`.

    Outputs: `predictions`, `labels` (text [n, k]) and `scores` (float32 [n, k]), each by falling score.
    """

    options: ClassVar = frozenset({"labels", "top_k"})
    is_slow: ClassVar = False

    def __init__(self, entry: StepEntry, labels: tuple[str, ...]) -> None:
        """`labels`: of the entry, or of the model that it names."""
        self._top_k = entry.top_k or len(labels)
        self._labels = labels
        self._names = np.array(labels, dtype=object)
        if self._top_k > len(labels):
            raise StepFault("top_k", f"expected at most {len(labels)}, the number of labels, got {self._top_k}")

    def ports(self, names: tuple[str, ...]) -> Mapping[str, Port]:
        if "indices" in names:
            return {"scores": Port(_ROWS), "indices": Port(TensorType("int64", (-1, -1)))}
        return {"scores": Port(TensorType("float32", (-1, len(self._labels))))}

    def outputs(self, given: Mapping[str, Kind]) -> Mapping[str, Kind]:
        shape = (-1, -1 if "indices" in given else self._top_k)
        return {
            "predictions": PredictionsType(self._labels),
            "labels": TensorType("string", shape),
            "scores": TensorType("float32", shape),
        }

    def run(self, values: Values) -> Values:
        scores, indices = values["scores"], values.get("indices")
        if indices is None:
            _check_columns("scores", scores, len(self._labels))
            indices = best_columns(scores, self._top_k)
            scores = _taken(scores, indices)
        elif indices.shape != scores.shape or (
            indices.size and not (indices.min() >= 0 and indices.max() < len(self._labels))
        ):
            raise InvalidInput("indices", f"expected an index of {len(self._labels)} labels for each score")
        labels = self._names[indices]
        predictions = [
            list(zip(names, numbers, strict=True))
            for names, numbers in zip(labels.tolist(), scores.tolist(), strict=True)
        ]
        return {"predictions": predictions, "labels": labels, "scores": scores}


class Normalize:
    """Divide each row by its L2 norm; with `mean` or `std` subtract and divide along the axis instead."""

    options: ClassVar = frozenset({"axis", "mean", "std"})
    is_slow: ClassVar = False

    def __init__(self, entry: StepEntry) -> None:
        self._axis = -1 if entry.axis is None else entry.axis
        self._mean = None if entry.mean is None else np.array(entry.mean, np.float32)
        self._std = None if entry.std is None else np.array(entry.std, np.float32)
        if self._std is not None and not self._std.all():
            raise StepFault("std", "expected numbers other than 0, got 0")

    def ports(self, names: tuple[str, ...]) -> Mapping[str, Port]:
        return {"values": Port(NUMBERS)}

    def outputs(self, given: Mapping[str, Kind]) -> Mapping[str, Kind]:
        kind = given["values"]
        _check_axis(kind, self._axis)
        assert isinstance(kind, TensorType)
        size = -1 if kind.shape is None else kind.shape[self._axis]
        for key, numbers in (("mean", self._mean), ("std", self._std)):
            if numbers is not None and size != -1 and len(numbers) not in (1, size):
                raise StepFault(key, f"expected 1 number or {size}, one for each value of the axis, got {len(numbers)}")
        return {"values": kind}

    def run(self, values: Values) -> Values:
        numbers = values["values"]
        _check_has_axis(numbers, self._axis)
        if self._mean is None and self._std is None:
            norms = np.sqrt(np.square(numbers).sum(axis=self._axis, keepdims=True))
            return {"values": numbers / np.maximum(norms, _SMALLEST)}
        for key, each in (("mean", self._mean), ("std", self._std)):
            if each is not None:
                if len(each) not in (1, numbers.shape[self._axis]):
                    raise InvalidInput(
                        "values", f"expected {len(each)} values along the axis as in {key}, got another number"
                    )
                shape = [1] * numbers.ndim
                shape[self._axis] = len(each)
                numbers = numbers - each.reshape(shape) if key == "mean" else numbers / each.reshape(shape)
        return {"values": numbers}


class Concat:
    """Join tensors of one dtype, or texts, along an axis, in the order of the inputs. Output: `values`."""

    options: ClassVar = frozenset({"axis"})
    is_slow: ClassVar = False

    def __init__(self, entry: StepEntry) -> None:
        self._axis = -1 if entry.axis is None else entry.axis
        if len(entry.inputs) < 2:
            raise StepFault("inputs", "expected two inputs or more, got one; add another")
        self._names = tuple(name for name, _ in entry.inputs)

    def ports(self, names: tuple[str, ...]) -> Mapping[str, Port]:
        return {name: Port(NUMBERS) for name in names}

    def outputs(self, given: Mapping[str, Kind]) -> Mapping[str, Kind]:
        kinds = [given[name] for name in self._names]
        for name in self._names:
            _check_axis(given[name], self._axis, f"inputs.{name}")
        shapes = [kind.shape for kind in kinds if isinstance(kind, TensorType)]
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes):
            return {"values": NUMBERS}
        joined = list(known[0])
        axis = self._axis % len(joined)
        for name, shape in zip(self._names[1:], known[1:], strict=True):
            if len(shape) != len(joined):
                raise StepFault(f"inputs.{name}", f"expected {len(joined)} axes as the first input, got {len(shape)}")
            for at, (one, other) in enumerate(zip(joined, shape, strict=True)):
                if at == axis:
                    joined[at] = -1 if -1 in (one, other) else one + other
                elif -1 not in (one, other) and one != other:
                    message = f"expected {one} values along axis {at} as the first input, got {other}"
                    raise StepFault(f"inputs.{name}", message)
                else:
                    joined[at] = max(one, other)
        return {"values": TensorType("float32", tuple(joined))}

    def run(self, values: Values) -> Values:
        try:
            return {"values": np.concatenate([values[name] for name in self._names], axis=self._axis)}
        except ValueError as error:
            raise InvalidInput(self._names[-1], f"expected a tensor that fits the others; {error}") from None


class Threshold:
    """Keep what scores enough: `scores` float32 [n, m] or [n, m, classes], and `values` [n, m, ...] beside them.

    Outputs, one row for each kept score, the best of each row first: `values`, `scores` [k], `rows` int64 [k] (the
    row that it was in), `indices` int64 [k] (its position in the row) and `classes` int64 [k].
    """

    options: ClassVar = frozenset({"min_score", "max_rows"})
    is_slow: ClassVar = False

    def __init__(self, entry: StepEntry) -> None:
        self._min_score = 0.5 if entry.min_score is None else entry.min_score
        self._max_rows = entry.max_rows or MAX_ROWS

    def ports(self, names: tuple[str, ...]) -> Mapping[str, Port]:
        return {"scores": Port(NUMBERS), "values": Port(NUMBERS, required=False)}

    def outputs(self, given: Mapping[str, Kind]) -> Mapping[str, Kind]:
        scores, values = given["scores"], given.get("values")
        assert isinstance(scores, TensorType)
        if scores.shape is not None and len(scores.shape) not in (2, 3):
            raise StepFault("inputs.scores", f"expected 2 or 3 axes, got {len(scores.shape)}")
        found: dict[str, Kind] = {"scores": TensorType("float32", (-1,))}
        found |= {name: TensorType("int64", (-1,)) for name in ("rows", "indices", "classes")}
        if values is not None:
            assert isinstance(values, TensorType)
            if values.shape is not None and len(values.shape) < 2:
                raise StepFault("inputs.values", f"expected 2 axes or more, got {len(values.shape)}")
            found["values"] = TensorType(values.dtype, None if values.shape is None else (-1, *values.shape[2:]))
        return found

    def run(self, values: Values) -> Values:
        scores, beside = values["scores"], values.get("values")
        if scores.ndim not in (2, 3):
            raise InvalidInput("scores", f"expected 2 or 3 axes, got {scores.ndim}")
        if beside is not None and beside.shape[:2] != scores.shape[:2]:
            raise InvalidInput(
                "values", f"expected {list(scores.shape[:2])} as of scores, got {list(beside.shape[:2])}"
            )
        classes = np.zeros(scores.shape[:2], np.int64)
        if scores.ndim == 3:
            if not scores.shape[2]:
                raise InvalidInput("scores", "expected one class or more, got none")
            classes = scores.argmax(axis=2)
            scores = np.take_along_axis(scores, classes[:, :, None], axis=2)[:, :, 0]
        rows, indices = np.nonzero(scores >= self._min_score)
        order = np.lexsort((-scores[rows, indices], rows))
        rows, indices = rows[order], indices[order]
        if len(rows) > self._max_rows:
            first = np.searchsorted(rows, rows)
            kept = np.arange(len(rows)) - first < self._max_rows
            rows, indices = rows[kept], indices[kept]
        found = {"scores": scores[rows, indices], "rows": rows, "indices": indices, "classes": classes[rows, indices]}
        if beside is not None:
            found["values"] = beside[rows, indices]
        return found


def best_columns(rows: Array, top_k: int) -> Array:
    """Return the columns of the largest values of each row, int64 [n, k], the largest first; equal ones in order."""
    if rows.ndim != 2 or rows.shape[1] < top_k:
        raise InvalidInput("values", f"expected {top_k} columns or more, got the shape {list(rows.shape)}")
    falling = -rows
    if rows.shape[1] < _MANY_COLUMNS or 4 * top_k > rows.shape[1]:
        return falling.argsort(1, "stable")[:, :top_k]
    best = np.empty((len(rows), top_k), np.int64)
    bounds = np.partition(falling, top_k - 1, axis=1)[:, top_k - 1]
    for at, (row, bound) in enumerate(zip(falling, bounds, strict=True)):
        columns = (row <= bound).nonzero()[0]
        if len(columns) < top_k:
            columns = np.arange(len(row))  # the bound is NaN
        best[at] = columns[row[columns].argsort(kind="stable")[:top_k]]
    return best


def _taken(rows: Array, columns: Array) -> Array:
    """Return these columns of each row. `np.take_along_axis` takes three times as long for small arrays."""
    return rows.take(columns) if len(rows) == 1 else rows[np.arange(len(rows))[:, None], columns]


def _check_axis(kind: Kind, axis: int, key: str = "axis") -> None:
    """Raises StepFault where a tensor of this type has no such axis."""
    assert isinstance(kind, TensorType)
    if kind.shape is not None and not -len(kind.shape) <= axis < len(kind.shape):
        raise StepFault(key, f"expected a tensor that has the axis {axis}, got {len(kind.shape)} axes")


def _check_has_axis(numbers: Array, axis: int) -> None:
    if not -numbers.ndim <= axis < numbers.ndim:
        raise InvalidInput("values", f"expected a tensor that has the axis {axis}, got {numbers.ndim} axes")


def _check_columns(name: str, rows: Array, columns: int) -> None:
    if rows.ndim != 2 or rows.shape[1] != columns:
        raise InvalidInput(name, f"expected {columns} columns, got the shape {list(rows.shape)}")
