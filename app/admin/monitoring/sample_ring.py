"""Keep the samples of the last 15 minutes in a ring buffer, and add up the cells that a viewer may see."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.admin.monitoring.sample_cells import COMPLETED, FIELDS, Cell, Floats
from app.observability.process_use import ServerUse

INTERVAL_S = 2.0
HISTORY_S = 900.0
WINDOW_S = 60.0
"""The time over which the latest figures of a model are taken."""
_SAMPLES = round(HISTORY_S / INTERVAL_S)
_WINDOW = round(WINDOW_S / INTERVAL_S)

Doubles = NDArray[np.float64]


class DeviceBytes(NamedTuple):
    """The memory of models and collections on a device.

    `reserved`: all of it, with `kv_total`, the size of the KV caches, and `collections`.
    """

    reserved: int = 0
    kv_total: int = 0
    kv_used: int = 0
    kv_cached: int = 0
    collections: int = 0


class Sample(NamedTuple):
    """One sample. `at_s`: its end (time.monotonic). `span_s`: seconds since the one before it.

    `keys`, `values`, `is_busy`: see Cells. `inflight`: requests in progress, those without a known model included.
    `versions`: completed requests by model, version and tenant since the start, of models of which several versions
    answer. `use`: of the processes.
    """

    at_s: float
    span_s: float
    keys: tuple[Cell, ...]
    values: Floats
    is_busy: bool
    inflight: int
    devices: Mapping[str, DeviceBytes]
    versions: Mapping[tuple[str, str, str], int]
    use: ServerUse = ServerUse()


class Visible:
    """Which cells are added up. Made for one rendering: it remembers the rows of equal keys."""

    def __init__(self, shows: Callable[[Cell], bool]) -> None:
        self._shows = shows
        self._rows: dict[int, NDArray[np.intp]] = {}
        self._models: dict[int, NDArray[np.intp]] = {}
        self._numbers: dict[str, int] = {}

    @property
    def models(self) -> list[str]:
        """The models of all rows until now, by the indices that `models_of` returns."""
        return list(self._numbers)

    def rows(self, keys: tuple[Cell, ...]) -> NDArray[np.intp]:
        """Return the visible rows of cells with these keys, which must stay alive: int [rows]."""
        found = self._rows.get(id(keys))
        if found is None:
            found = np.array([i for i, key in enumerate(keys) if self._shows(key)], np.intp)
            self._rows[id(keys)] = found
        return found

    def models_of(self, keys: tuple[Cell, ...]) -> NDArray[np.intp]:
        """Return the index of the model of each visible row, int [rows]."""
        found = self._models.get(id(keys))
        if found is None:
            names = [keys[row].model for row in self.rows(keys)]
            found = np.array([self._numbers.setdefault(name, len(self._numbers)) for name in names], np.intp)
            self._models[id(keys)] = found
        return found


class SampleRing:
    """The latest samples. Its memory is bounded: a fixed number of samples has a bounded number of cells each."""

    def __init__(self, kept: int = _SAMPLES) -> None:
        self._samples: deque[Sample] = deque(maxlen=kept)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    @property
    def samples(self) -> Sequence[Sample]:
        """Oldest first."""
        return self._samples

    def window(self) -> list[Sample]:
        """Return the samples of the last WINDOW_S."""
        return list(self._samples)[-_WINDOW:]


def sums(samples: Iterable[Sample], visible: Visible) -> Doubles:
    """Return the sums of the visible cells of each sample, float64 [samples, FIELDS]."""
    samples = list(samples)
    total = np.zeros((len(samples), FIELDS))
    if samples:
        parts = [sample.values[visible.rows(sample.keys)] for sample in samples]
        np.add.at(total, np.repeat(np.arange(len(samples)), [len(part) for part in parts]), np.concatenate(parts))
    return total


def by_model(samples: Iterable[Sample], visible: Visible) -> dict[str, Doubles]:
    """Return the sums of the visible cells of all samples by model, each float64 [FIELDS]."""
    samples = list(samples)
    if not samples:
        return {}
    rows = np.concatenate([sample.values[visible.rows(sample.keys)] for sample in samples])
    indices = np.concatenate([visible.models_of(sample.keys) for sample in samples])
    total = np.zeros((len(visible.models), FIELDS))
    np.add.at(total, indices, rows)
    return dict(zip(visible.models, total, strict=True))


def completed_by_model(samples: Iterable[Sample], visible: Visible) -> dict[str, Doubles]:
    """Return the completed requests of each sample by model, float64 [samples]; only models with any."""
    samples = list(samples)
    if not samples:
        return {}
    parts = [sample.values[visible.rows(sample.keys), COMPLETED] for sample in samples]
    indices = np.concatenate([visible.models_of(sample.keys) for sample in samples])
    total = np.zeros((len(visible.models), len(samples)))
    np.add.at(
        total, (indices, np.repeat(np.arange(len(samples)), [len(part) for part in parts])), np.concatenate(parts)
    )
    return {name: row for name, row in zip(visible.models, total, strict=True) if name and row.any()}
