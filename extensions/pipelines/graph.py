"""Check how the steps of a pipeline are wired, and order them. Pure: it knows no models and no types."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from extensions.pipelines.settings import PipelineEntry, StepEntry
from frameworks.core.errors import similar_names

Place = tuple[str | int, ...]
"""The key of a fault within the entry of the pipeline, such as ("steps", 1, "inputs", "x")."""


class Fault(NamedTuple):
    """A fault of a pipeline. `message`: expected X, got Y; do Z."""

    place: Place
    message: str

    def __str__(self) -> str:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.place)
        return f"{path.removeprefix('.')}: {self.message}"


class Source(NamedTuple):
    """Where a value comes from. `step`: None for an input of the pipeline. `output`: None for the first of a step."""

    step: str | None
    output: str | None


@dataclass(frozen=True, slots=True)
class Graph:
    """The wiring of a pipeline. `order`: the steps, each after those whose outputs it reads.

    `wires`: by step and input. `outputs`: of the pipeline. `index`: the position of each step in the entry.
    """

    entry: PipelineEntry
    order: tuple[StepEntry, ...]
    wires: Mapping[str, Mapping[str, Source]]
    outputs: Mapping[str, Source]
    index: Mapping[str, int]
    steps: dict[str, StepEntry] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", {step.name: step for step in self.order})


def check_graph(entry: PipelineEntry) -> tuple[Graph | None, list[Fault]]:
    """Return the graph of a pipeline, and all faults of its wiring. The graph is None where it has any."""
    faults = [*_faults_of_names(entry)]
    inputs = [name for name, _ in entry.inputs]
    names = {step.name for step in entry.steps}
    wires: dict[str, dict[str, Source]] = {}
    for index, step in enumerate(entry.steps):
        at: dict[str, Place] = {name: ("steps", index, "inputs", name) for name, _ in step.inputs}
        wires[step.name] = _resolved(step.inputs, at, inputs, names, faults)
    places: dict[str, Place] = {name: ("outputs", name) for name, _ in entry.outputs}
    outputs = _resolved(entry.outputs, places, (), names, faults)
    faults += _unused(entry, wires, outputs)
    order = _ordered(entry, wires, faults)
    if faults:
        return None, faults
    steps = {step.name: step for step in entry.steps}
    index_of = {step.name: index for index, step in enumerate(entry.steps)}
    return Graph(entry, tuple(steps[name] for name in order), wires, outputs, index_of), []


def nearest(name: str, known: Collection[str]) -> str:
    """Return a hint with the nearest known name, or all of a few."""
    near = similar_names(name, known, 1)
    if near:
        return f'did you mean "{near[0]}"?'
    names = ", ".join(sorted(known)[:10])
    return f"there is {names}" if names else "there is none"


def _faults_of_names(entry: PipelineEntry) -> Iterator[Fault]:
    inputs = {name for name, _ in entry.inputs}
    seen: set[str] = set()
    for index, step in enumerate(entry.steps):
        if step.name in seen:
            yield Fault(("steps", index, "name"), f'expected a unique name, got "{step.name}" again; choose another')
        elif step.name in inputs:
            message = f'expected another name than that of an input, got "{step.name}"; choose another'
            yield Fault(("steps", index, "name"), message)
        seen.add(step.name)


def _resolved(
    pairs: tuple[tuple[str, str], ...],
    places: Mapping[str, Place],
    inputs: Collection[str],
    steps: Collection[str],
    faults: list[Fault],
) -> dict[str, Source]:
    """Return the sources that exist; add a fault for each other one. `inputs`: those that may be read."""
    found: dict[str, Source] = {}
    for name, text in pairs:
        head, dot, tail = text.partition(".")
        if head in steps:
            found[name] = Source(head, tail if dot else None)
        elif text in inputs:
            found[name] = Source(None, text)
        else:
            wanted = "an input of the pipeline or a step" if inputs else "a step"
            hint = nearest(head, [*inputs, *steps])
            faults.append(Fault(places[name], f'expected {wanted}, got "{text[:200]}"; {hint}'))
    return found


def _unused(
    entry: PipelineEntry, wires: Mapping[str, Mapping[str, Source]], outputs: Mapping[str, Source]
) -> Iterator[Fault]:
    sources = [source for read in (*wires.values(), outputs) for source in read.values()]
    read_steps = {source.step for source in sources}
    read_inputs = {source.output for source in sources if source.step is None}
    for index, step in enumerate(entry.steps):
        if step.name not in read_steps:
            message = f'expected a step or an output that reads "{step.name}", got none; read it, or remove the step'
            yield Fault(("steps", index, "name"), message)
    for name, _ in entry.inputs:
        if name not in read_inputs:
            message = f'expected a step that reads "{name}", got none; read it, or remove the input'
            yield Fault(("inputs", name), message)


def _ordered(entry: PipelineEntry, wires: Mapping[str, Mapping[str, Source]], faults: list[Fault]) -> list[str]:
    """Return the names of the steps in an order in which they can run; add a fault for a cycle."""
    sorter = TopologicalSorter(
        {
            step.name: [source.step for source in wires[step.name].values() if source.step is not None]
            for step in entry.steps
        }
    )
    try:
        return list(sorter.static_order())
    except CycleError as error:
        names: list[str] = error.args[1]
        index = next(index for index, step in enumerate(entry.steps) if step.name == names[0])
        circle = " -> ".join(reversed(names))
        message = f"expected steps without a cycle, got {circle}; remove one of these wires"
        faults.append(Fault(("steps", index, "inputs"), message))
        return []
