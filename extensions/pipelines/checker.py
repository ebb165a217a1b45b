"""Check the types of a pipeline: each value fits the step that reads it. Pure: it runs and loads nothing."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from extensions.pipelines.graph import Fault, Graph, Place, Source, check_graph, nearest
from extensions.pipelines.kinds import AnyType, Kind, PredictionsType, describe, fits, merged, parse_kind
from extensions.pipelines.model_calls import ModelCall, make_call
from extensions.pipelines.searches import SearchStep
from extensions.pipelines.settings import AUTO, PipelineEntry, StepEntry
from extensions.pipelines.steps.builtins import OPTIONS, make_builtin
from extensions.pipelines.steps.contract import BuiltinStep, Port, StepFault
from extensions.pipelines.steps.functions import FunctionStep
from frameworks.types import ModelSpec, TensorType

Work = BuiltinStep | ModelCall | SearchStep
"""The work of a step."""

_KEYS = ("name", "model", "builtin", "function", "collection", "inputs")


@dataclass(slots=True)
class Typed:
    """A checked pipeline. `works`: by step. `inputs`, `outputs`: the types of the pipeline.

    `used`: the outputs of each step that are read. Steps of models that are not loaded are in no mapping.
    """

    graph: Graph
    works: dict[str, Work] = field(default_factory=dict)
    inputs: dict[str, Kind] = field(default_factory=dict)
    outputs: dict[str, Kind] = field(default_factory=dict)
    used: dict[str, frozenset[str]] = field(default_factory=dict)
    produced: dict[str, Mapping[str, Kind]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether the specs of all models were known."""
        return len(self.works) == len(self.graph.order)


def check_pipeline(
    entry: PipelineEntry,
    models: Collection[str],
    specs: Mapping[str, ModelSpec] = {},
    pipelines: Collection[str] = (),
    collections: Mapping[str, int] = {},
) -> tuple[Typed | None, list[Fault]]:
    """Return the checked pipeline, and all faults. It is None where there are any.

    `models`: the names of all models. `specs`: of those that are loaded; the types of the others are not checked.
    `pipelines`: the names of all pipelines, which no step may run. `collections`: the dimensions of each collection, -1
    where they are unknown.
    """
    of_keys = [fault for index, step in enumerate(entry.steps) for fault in _faults_of_keys(index, step)]
    graph, of_wires = check_graph(entry)
    unknown = [*_unknown_models(entry, models, pipelines), *_unknown_collections(entry, collections)]
    faults = [*of_keys, *unknown, *of_wires]
    if graph is None or of_keys:
        return None, faults
    # Steps of unknown models and collections have unknown types; the types of the others are checked.
    checker = _Checker(graph, specs, collections)
    checker.check()
    faults += checker.faults
    return (None, faults) if faults else (checker.typed, [])


def _faults_of_keys(index: int, step: StepEntry) -> Iterator[Fault]:
    """Yield a fault where a step does not do exactly one thing, and for each key that it does not read."""
    kinds = [key for key in ("builtin", "function", "collection", "model") if getattr(step, key) is not None]
    # Some built-in steps read a model.
    if len(kinds) != 1 and kinds != ["builtin", "model"]:
        yield Fault(
            ("steps", index), "expected exactly one of model, builtin, function and collection; keep one of them"
        )
        return
    if step.builtin is not None:
        options, what = OPTIONS[step.builtin], f'the step "{step.builtin}"'
    elif step.function is not None:
        options, what = FunctionStep.options, "a function"
    elif step.collection is not None:
        options, what = SearchStep.options, "a collection"
    else:
        options, what = frozenset({"model", "normalize", "truncate"}), "a model"
    for key in type(step).model_fields:
        if key not in _KEYS and key not in options and getattr(step, key) is not None:
            hint = f"its keys are {', '.join(sorted(options))}" if options else "it has no keys"
            yield Fault(("steps", index, key), f"expected a key of {what}, got {key}; {hint}")
    if step.builtin is not None and step.model is not None and "model" not in options:
        yield Fault(("steps", index, "model"), f"expected no model beside {what}, got one; remove one of them")
    if step.builtin == "tokenize" and step.model is None:
        yield Fault(("steps", index, "model"), "expected the model whose tokenizer it takes, got none; set it")


def _unknown_models(entry: PipelineEntry, models: Collection[str], pipelines: Collection[str]) -> Iterator[Fault]:
    for index, step in enumerate(entry.steps):
        place = ("steps", index, "model")
        if step.model in pipelines:
            message = f'expected a model, got the pipeline "{step.model}"; add its steps to this one'
            yield Fault(place, message)
        elif step.model is not None and step.model not in models:
            yield Fault(
                place, f'expected a model of the server, got "{step.model[:200]}"; {nearest(step.model, models)}'
            )


def _unknown_collections(entry: PipelineEntry, collections: Collection[str]) -> Iterator[Fault]:
    for index, step in enumerate(entry.steps):
        name = step.collection
        if name is not None and name not in collections:
            message = f'expected a collection of the server, got "{name[:200]}"; {nearest(name, collections)}'
            yield Fault(("steps", index, "collection"), message)


class _Checker:
    """Checks the steps in their order: the types of the inputs of a step are known before those of its outputs."""

    def __init__(self, graph: Graph, specs: Mapping[str, ModelSpec], collections: Mapping[str, int]) -> None:
        self.typed = Typed(graph)
        self.faults: list[Fault] = []
        self._graph = graph
        self._specs = specs
        self._collections = collections
        self._ports: dict[str, Mapping[str, Port]] = {}

    def check(self) -> None:
        graph = self._graph
        for step in graph.order:
            self.typed.used[step.name] = self._used_outputs(step.name)
        for step in graph.order:
            self._make(step)
        for name, kind in graph.entry.inputs:
            self._type_input(name, kind)
        for step in graph.order:
            self._check_step(step)
        for name, source in graph.outputs.items():
            found = self._kind_of(source, ("outputs", name))
            if found is None:
                continue
            self.typed.outputs[name] = found
            if not isinstance(found, TensorType | PredictionsType):
                message = f"expected a tensor, text or predictions, got {describe(found)}; read it in a step"
                self._fault(("outputs", name), message)

    def _used_outputs(self, step: str) -> frozenset[str]:
        graph = self._graph
        sources = [source for read in (*graph.wires.values(), graph.outputs) for source in read.values()]
        return frozenset(source.output or "" for source in sources if source.step == step)

    def _make(self, step: StepEntry) -> None:
        """Note what a step does, if its model is loaded, and which inputs it reads."""
        spec = None if step.model is None else self._specs.get(step.model)
        wired = frozenset(self._graph.wires[step.name])
        work: Work | None = None
        try:
            if step.function is not None:
                work = FunctionStep(step)
            elif step.collection is not None:
                if step.collection in self._collections:
                    work = SearchStep(step, self._collections[step.collection])
            elif step.builtin is not None and step.builtin != "tokenize":
                work = make_builtin(step, spec)
            elif spec is not None:
                work = self._make_call(step, wired, spec)
        except StepFault as fault:
            self._step_fault(step, fault)
            return
        if work is not None:
            self.typed.works[step.name] = work
            names = tuple(self._graph.wires[step.name])
            self._ports[step.name] = work.ports if isinstance(work, ModelCall) else work.ports(names)
            self._check_names(step, self._ports[step.name])

    def _make_call(self, step: StepEntry, wired: frozenset[str], spec: ModelSpec) -> ModelCall:
        call = make_call(step, wired, self.typed.used[step.name], spec)
        if "" in self.typed.used[step.name]:
            # The first output is read without its name.
            self.typed.used[step.name] = self.typed.used[step.name] - {""} | {next(iter(call.outputs))}
            call = make_call(step, wired, self.typed.used[step.name], spec)
        return call

    def _check_names(self, step: StepEntry, ports: Mapping[str, Port]) -> None:
        index = self._graph.index[step.name]
        for name in self._graph.wires[step.name]:
            if name not in ports:
                message = f'expected an input of the step, got "{name[:200]}"; {nearest(name, ports)}'
                self._fault(("steps", index, "inputs", name), message)
        for name, port in ports.items():
            if port.required and name not in self._graph.wires[step.name]:
                message = f"expected the input {name}, {describe(port.kind)}, got none; wire it"
                self._fault(("steps", index, "inputs"), message)

    def _type_input(self, name: str, declared: str) -> None:
        """Note the type of an input of the pipeline: the declared one, or that of the steps that read it."""
        if declared != AUTO:
            try:
                self.typed.inputs[name] = parse_kind(declared)
            except ValueError as error:
                self._fault(("inputs", name), f'{error}, got "{declared[:200]}"')
            return
        source, found = Source(None, name), None
        for step, wires in self._graph.wires.items():
            for port, read in wires.items():
                if read != source or step not in self._ports or port not in self._ports[step]:
                    continue
                kind = self._ports[step][port].kind
                both = kind if found is None else merged(found, kind)
                if both is None:
                    assert found is not None
                    message = f"expected one type, got {describe(found)} and {describe(kind)}; read it by one of them"
                    self._fault(("inputs", name), message)
                    return
                found = both
        if isinstance(found, AnyType):
            self._fault(("inputs", name), 'expected the type of this input, got "auto"; name it, like "float32[-1, 4]"')
        elif found is not None:
            self.typed.inputs[name] = found

    def _check_step(self, step: StepEntry) -> None:
        """Check the types of a step's inputs, and note those of its outputs."""
        given: dict[str, Kind] = {}
        index = self._graph.index[step.name]
        work, ports = self.typed.works.get(step.name), self._ports.get(step.name, {})
        is_right = True
        for name, source in self._graph.wires[step.name].items():
            kind = self._kind_of(source, ("steps", index, "inputs", name))
            port = ports.get(name)
            if port is None:
                continue
            if kind is None:
                given[name] = port.kind
            elif fits(port.kind, kind):
                given[name] = merged(port.kind, kind) or port.kind
            else:
                text = self._text_of(step, name)
                message = f"expected {describe(port.kind)}, got {describe(kind)} from {text}; wire another value"
                self._fault(("steps", index, "inputs", name), message)
                is_right = False
        if work is None or not is_right or any(p.required and name not in given for name, p in ports.items()):
            return
        try:
            self.typed.produced[step.name] = work.outputs if isinstance(work, ModelCall) else work.outputs(given)
        except StepFault as fault:
            self._step_fault(step, fault)

    def _kind_of(self, source: Source, place: Place) -> Kind | None:
        """Return the type of a value; None where it is unknown. Add a fault for an output that a step does not have."""
        if source.step is None:
            assert source.output is not None
            return self.typed.inputs.get(source.output)
        produced = self.typed.produced.get(source.step)
        if produced is None:
            return None
        if source.output is None:
            return next(iter(produced.values()))
        if source.output not in produced:
            message = f'expected an output of "{source.step}", got "{source.output[:200]}"; '
            self._fault(place, message + nearest(source.output, produced))
            return None
        return produced[source.output]

    def _text_of(self, step: StepEntry, name: str) -> str:
        return f'"{dict(step.inputs)[name]}"'

    def _step_fault(self, step: StepEntry, fault: StepFault) -> None:
        # Names of inputs and outputs may have dots; keys of a filter are nested.
        parts = fault.key.split(".", -1 if fault.key.startswith("filter.") else 1)
        self._fault(("steps", self._graph.index[step.name], *parts), fault.message)

    def _fault(self, place: Place, message: str) -> None:
        self.faults.append(Fault(place, message))
