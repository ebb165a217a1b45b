"""Read the counts of the server as differences since the last sample: one cell for each model and tenant."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.admin.metrics.models import tenant_tokens
from app.observability.metrics import REJECTED_STATUSES
from app.observability.tallies import SECONDS_BUCKETS, RequestTallies
from frameworks.models.versions.slot import ModelSlot

Floats = NDArray[np.float32]

MOST_CELLS = 256
"""In one sample. Cells with the fewest requests are left out."""

# Of a tenant's requests to a model, in one sample.
COMPLETED, FAILED, REFUSED, ANSWERED, LATENCY_S, QUEUE_S, COMPUTE_S, TOKENS, PROMPT_TOKENS = range(9)
OWN_INFLIGHT, OWN_QUEUE = 9, 10
# Of a model, for all tenants together.
INFLIGHT, QUEUE, BATCHES, ROWS, MEMORY_BYTES = range(11, 16)
BUCKETS = 16
"""The first of the counts of latencies, one for each bucket of SECONDS_BUCKETS and the last for all above."""
FIELDS = BUCKETS + len(SECONDS_BUCKETS) + 1


class Cell(NamedTuple):
    """A model ("" for requests that name no known one), and a tenant; None: the cell of the model itself."""

    model: str
    tenant: str | None


class Cells(NamedTuple):
    """`keys` of the rows of `values`, float32 [cells, FIELDS]. Equal keys are one object.

    `is_busy`: whether any cell has more than the state of now: requests, batches or tokens.
    """

    keys: tuple[Cell, ...]
    values: Floats
    is_busy: bool


class CellReader:
    """Owned by the event loop. Keeps the counts of the last reading."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str, int, str], int] = {}
        self._times: dict[tuple[str, str], tuple[Floats, float, float, float]] = {}
        self._tokens: dict[Cell, tuple[int, int]] = {}
        self._all_tokens: dict[str, tuple[int, int]] = {}
        self._batches: dict[str, tuple[int, int]] = {}
        self._keys: tuple[Cell, ...] = ()

    def read(self, tallies: RequestTallies, slots: Iterable[ModelSlot]) -> Cells:
        """Return the cells with anything but zeros. Counts that have fallen, of a deleted model, start again."""
        cells: dict[Cell, Floats] = {}
        slots = list(slots)
        self._read_requests(tallies, cells)
        self._read_times(tallies, cells)
        for slot in slots:
            self._read_model(slot, cells)
            if slot.requests.inflight:
                for tenant, (inflight, queued) in tallies.requests_by_tenant(slot).items():
                    if tenant:  # those without a key are an operator's, who sees the model's own cell
                        cell = _cell(cells, Cell(slot.name, tenant))
                        cell[OWN_INFLIGHT], cell[OWN_QUEUE] = inflight, queued
        self._forget(slots)
        keys = list(cells)
        if len(keys) > MOST_CELLS:
            keys = sorted(keys, key=lambda key: (key.tenant is not None, -cells[key][COMPLETED]))[:MOST_CELLS]
        if tuple(keys) != self._keys:
            self._keys = tuple(keys)
        values = np.stack([cells[key] for key in keys]) if keys else np.zeros((0, FIELDS), np.float32)
        is_busy = bool(values[:, :OWN_INFLIGHT].any() or values[:, BATCHES].any())
        return Cells(self._keys, values, is_busy)

    def _read_requests(self, tallies: RequestTallies, cells: dict[Cell, Floats]) -> None:
        before = self._requests
        for key, count in tallies.requests.items():
            earlier = before.get(key, 0)
            if count == earlier:
                continue
            before[key] = count
            model, _, status, tenant = key
            new = count - earlier if count > earlier else count
            cell = _cell(cells, Cell(model, tenant))
            cell[COMPLETED] += new
            if status >= 400:
                cell[FAILED] += new
            if status in REJECTED_STATUSES:
                cell[REFUSED] += new
        if len(before) > len(tallies.requests):
            self._requests = {key: before[key] for key in tallies.requests}

    def _read_times(self, tallies: RequestTallies, cells: dict[Cell, Floats]) -> None:
        for key, metrics in tallies.models.items():
            earlier = self._times.get(key)
            latency = metrics.request_seconds
            if earlier is not None and earlier[1] == latency.total:
                continue
            counts = np.array(latency.counts, np.float32)
            now = counts, latency.total, metrics.queue_seconds.total, metrics.compute_seconds.total
            self._times[key] = now
            if earlier is not None and (counts >= earlier[0]).all():
                counts = counts - earlier[0]
                now = counts, now[1] - earlier[1], now[2] - earlier[2], now[3] - earlier[3]
            cell = _cell(cells, Cell(*key))
            cell[BUCKETS:] = counts
            cell[ANSWERED], cell[LATENCY_S], cell[QUEUE_S], cell[COMPUTE_S] = counts.sum(), *now[1:]
        if len(self._times) > len(tallies.models):
            self._times = {key: self._times[key] for key in tallies.models}

    def _read_model(self, slot: ModelSlot, cells: dict[Cell, Floats]) -> None:
        """Read what is counted by model: batches and steps, tokens, and the state of now."""
        name, runs = slot.name, list(slot.identity.runs.values())
        sizes = [each for run in runs for each in (run.batches.sizes, run.generated.steps.sizes)]
        batches = sum(each.total() for each in sizes)
        rows = sum(size * number for each in sizes for size, number in each.items())
        earlier_batches, earlier_rows = self._batches.get(name, (0, 0))
        if batches != earlier_batches:
            self._batches[name] = batches, rows
            cell = _cell(cells, Cell(name, None))
            cell[BATCHES], cell[ROWS] = _new(batches, earlier_batches), _new(rows, earlier_rows)
        inflight, queue, memory_bytes = slot.requests.inflight, slot.queue_depth, slot.memory_bytes
        if inflight or queue or memory_bytes:
            cell = _cell(cells, Cell(name, None))
            cell[INFLIGHT], cell[QUEUE], cell[MEMORY_BYTES] = inflight, queue, memory_bytes
        tokens_now = sum(run.generated.tokens for run in runs), sum(run.generated.prompt_tokens for run in runs)
        if tokens_now != self._all_tokens.get(name, (0, 0)):
            self._all_tokens[name] = tokens_now
            for tenant, each in tenant_tokens(slot.generated).items():
                tokens, prompt = each.generated, each.prompt
                earlier = self._tokens.get(Cell(name, tenant), (0, 0))
                if (tokens, prompt) != earlier:
                    self._tokens[Cell(name, tenant)] = tokens, prompt
                    cell = _cell(cells, Cell(name, tenant))
                    cell[TOKENS], cell[PROMPT_TOKENS] = _new(tokens, earlier[0]), _new(prompt, earlier[1])

    def _forget(self, slots: list[ModelSlot]) -> None:
        """Drop the counts of deleted models."""
        if len(self._batches) > len(slots) or len(self._all_tokens) > len(slots):
            names = {slot.name for slot in slots}
            self._batches = {name: counts for name, counts in self._batches.items() if name in names}
            self._all_tokens = {name: counts for name, counts in self._all_tokens.items() if name in names}
            self._tokens = {cell: counts for cell, counts in self._tokens.items() if cell.model in names}


def _cell(cells: dict[Cell, Floats], key: Cell) -> Floats:
    cell = cells.get(key)
    if cell is None:
        cell = cells[key] = np.zeros(FIELDS, np.float32)
    return cell


def _new(count: int, earlier: int) -> int:
    return count - earlier if count >= earlier else count
