"""Compile a checked pipeline into a plan that runs fast: values have positions, and steps know their readers."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from extensions.pipelines.checker import Typed, Work
from extensions.pipelines.graph import Source
from extensions.pipelines.kinds import Kind, Values
from extensions.pipelines.model_calls import ModelCall, TensorCall
from extensions.pipelines.searches import SearchStep
from extensions.pipelines.steps.contract import Port
from frameworks.types import NUMPY_DTYPES, TensorType

InputPort = tuple[str, int, np.dtype[Any] | None]
"""An input of a step: its name, the position of its value, and the dtype that the step reads; None: no tensor."""


@dataclass(slots=True, eq=False)
class PlannedStep:
    """A step of a plan. `outputs`: the read ones and the positions of their values. `readers`: steps that read them.

    `label`: names it in messages. `is_call`: it runs a model; `reads_tensors`: a model of tensors. `is_search`: it
    searches a collection. `is_slow`: it runs on a thread. `num_sources`: the steps that it waits for.
    """

    name: str
    work: Work
    inputs: tuple[InputPort, ...]
    outputs: tuple[tuple[str, int], ...]
    model: str = ""
    is_call: bool = False
    reads_tensors: bool = False
    is_search: bool = False
    is_slow: bool = False
    num_sources: int = 0
    readers: list["PlannedStep"] = field(default_factory=list)
    position: int = 0
    label: str = field(init=False)

    def __post_init__(self) -> None:
        self.label = f'step "{self.name}"'

    def read(self, values: list[Any]) -> Values:
        """Return the inputs in the dtypes that the step reads. `values`: of the request, by position."""
        read: Values = {}
        for name, position, dtype in self.inputs:
            value = values[position]
            if dtype is not None and value.dtype is not dtype and value.dtype != dtype:
                value = value.astype(dtype)
            read[name] = value
        return read

    def write(self, answer: Values, values: list[Any]) -> None:
        """Set the values that other steps read."""
        for name, position in self.outputs:
            values[position] = answer[name]


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline that can run. `inputs` and `outputs`: names, positions of their values, and types.

    `is_serial`: no two steps that wait, for models, collections or threads, can run at the same time.
    """

    steps: tuple[PlannedStep, ...]
    inputs: tuple[tuple[str, int, Kind], ...]
    outputs: tuple[tuple[str, int, Kind], ...]
    num_values: int
    is_serial: bool
    models: frozenset[str]
    wired: dict[str, frozenset[str]]
    used: dict[str, frozenset[str]]


def make_plan(typed: Typed) -> Plan:
    """Return the plan of a complete pipeline."""
    assert typed.is_complete, "the types of all models are known"
    graph = typed.graph
    positions: dict[Source, int] = {}
    for name, _ in graph.entry.inputs:
        positions[Source(None, name)] = len(positions)
    steps: dict[str, PlannedStep] = {}
    for at, entry in enumerate(graph.order):
        work = typed.works[entry.name]
        wires = graph.wires[entry.name]
        ports = _ports_of(work, tuple(wires))
        inputs = tuple(
            (name, positions[_named(source, typed)], _dtype_of(ports[name].kind)) for name, source in wires.items()
        )
        read = {name or _first(typed, entry.name) for name in typed.used[entry.name]}
        outputs = []
        for name in typed.produced[entry.name]:
            if name in read:
                source = Source(entry.name, name)
                positions[source] = len(positions)
                outputs.append((name, positions[source]))
        is_call = isinstance(work, ModelCall)
        is_slow = not isinstance(work, ModelCall) and work.is_slow
        is_search = isinstance(work, SearchStep)
        step = PlannedStep(
            entry.name,
            work,
            inputs,
            tuple(outputs),
            entry.model or "",
            is_call,
            isinstance(work, TensorCall),
            is_search,
            is_slow,
            position=at,
        )
        sources = {source.step for source in wires.values() if source.step is not None}
        step.num_sources = len(sources)
        for source_name in sources:
            steps[source_name].readers.append(step)
        steps[entry.name] = step
    order = tuple(steps.values())
    return Plan(
        order,
        tuple((name, positions[Source(None, name)], typed.inputs[name]) for name, _ in graph.entry.inputs),
        tuple((name, positions[_named(source, typed)], typed.outputs[name]) for name, source in graph.outputs.items()),
        len(positions),
        _is_serial(order),
        frozenset(step.model for step in order if step.is_call),
        {step.name: frozenset(graph.wires[step.name]) for step in order},
        dict(typed.used),
    )


def _ports_of(work: Work, names: tuple[str, ...]) -> dict[str, Port]:
    return dict(work.ports if isinstance(work, ModelCall) else work.ports(names))


def _dtype_of(kind: Kind) -> np.dtype[Any] | None:
    return NUMPY_DTYPES[kind.dtype] if isinstance(kind, TensorType) else None


def _first(typed: Typed, step: str) -> str:
    return next(iter(typed.produced[step]))


def _named(source: Source, typed: Typed) -> Source:
    """Return the source with the name of the output that it means."""
    if source.step is None or source.output is not None:
        return source
    return Source(source.step, _first(typed, source.step))


def _is_serial(order: tuple[PlannedStep, ...]) -> bool:
    """Whether each step that waits comes after all earlier ones that wait."""
    after: dict[PlannedStep, set[PlannedStep]] = {step: set() for step in order}
    waiting: list[PlannedStep] = []
    for step in order:
        if step.is_call or step.is_search or step.is_slow:
            if waiting and not set(waiting) <= after[step]:
                return False
            waiting.append(step)
        for reader in step.readers:
            after[reader] |= after[step] | {step}
    return True
