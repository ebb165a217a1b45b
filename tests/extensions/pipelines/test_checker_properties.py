"""Property tests of the checker: accepted graphs run and equal numpy; cyclic and ill-typed graphs are refused."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from extensions.pipelines.checker import check_pipeline
from frameworks.types import Array, ModelSpec
from tests.support.pipelines import NumpyParts, ask, call, engine_of, faults_of, pipeline, step, tensor_spec, tensors

SIZES = (1, 2, 3, 4)
SPECS: dict[str, ModelSpec] = {f"m{n}x{k}": tensor_spec(n, k) for n in SIZES for k in SIZES}
ROWS = 3


def weights(model: str) -> Array:
    """Return the matrix of a model, from its name."""
    columns, outputs = map(int, model[1:].split("x"))
    return np.random.default_rng(10 * columns + outputs).normal(size=(columns, outputs)).astype(np.float32)


def product(model: str, request: Any) -> dict[str, Array]:
    """Run a model."""
    return {"y": request.inputs["x"] @ weights(model)}


PARTS = NumpyParts(SPECS, {name: partial(product, name) for name in SPECS})


@dataclass
class Graph:
    """A random pipeline, and its values by hand. `columns`: of each value. `parents`: of each step."""

    inputs: dict[str, Array] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    values: dict[str, Array] = field(default_factory=dict)
    parents: dict[str, set[str]] = field(default_factory=dict)

    def add(self, table: dict[str, Any], value: Array) -> None:
        name = table["name"]
        self.steps.append(table)
        self.values[name] = value
        self.parents[name] = set(table["inputs"].values())

    def ancestors(self, name: str) -> set[str]:
        found: set[str] = set()
        for parent in self.parents.get(name, set()):
            found |= {parent} | self.ancestors(parent)
        return found

    @property
    def outputs(self) -> dict[str, str]:
        read = {source for table in self.steps for source in table["inputs"].values()}
        return {table["name"]: table["name"] for table in self.steps if table["name"] not in read}

    def entry(self, steps: list[dict[str, Any]] | None = None) -> Any:
        kinds = {name: f"float32[-1, {value.shape[1]}]" for name, value in self.inputs.items()}
        return pipeline(kinds, self.outputs, *(self.steps if steps is None else steps))


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)  # type: ignore[no-any-return]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw a graph of one to eight steps over one or two inputs; every value is read."""
    graph = Graph()
    for at in range(draw(st.integers(1, 2))):
        value = np.random.default_rng(at).normal(size=(ROWS, draw(st.sampled_from(SIZES)))).astype(np.float32)
        graph.inputs[f"in{at}"] = graph.values[f"in{at}"] = value
    unread = list(graph.inputs)
    for at in range(draw(st.integers(len(unread), 8))):
        # The inputs first: each has to be read.
        source = unread.pop() if unread else draw(st.sampled_from(sorted(graph.values)))
        other = draw(st.sampled_from(sorted(graph.values)))
        x, name = graph.values[source], f"s{at}"
        kind = draw(st.sampled_from(["model", "softmax", "normalize", "concat", "top_k"]))
        if kind == "model":
            fitting = [model for model in SPECS if model.startswith(f"m{x.shape[1]}x")]
            if not fitting:
                kind = "softmax"
            else:
                model = draw(st.sampled_from(fitting))
                graph.add(call(name, model, {"x": source}), x @ weights(model))
        if kind == "softmax":
            graph.add(step(name, "softmax", {"values": source}), softmax(x))
        elif kind == "normalize":
            graph.add(step(name, "normalize", {"values": source}), x / np.linalg.norm(x, axis=1, keepdims=True))
        elif kind == "concat":
            joined = np.hstack([x, graph.values[other]])
            graph.add(step(name, "concat", {"one": source, "two": other}), joined)
        elif kind == "top_k":
            top_k = draw(st.integers(1, x.shape[1]))
            graph.add(step(name, "top_k", {"values": source}, top_k=top_k), -np.sort(-x, axis=1)[:, :top_k])
    return graph


@settings(deadline=None, max_examples=60)
@given(graphs(), st.randoms(use_true_random=False))
def test_accepted_graph_runs_and_equals_numpy(graph: Graph, random: Any) -> None:
    steps = list(graph.steps)
    random.shuffle(steps)
    with ThreadPoolExecutor(1) as threads:
        engine = engine_of(graph.entry(steps), PARTS, threads)
        answer = asyncio.run(ask(engine, tensors(**graph.inputs)))
    assert list(answer) == list(graph.outputs)
    for name, source in graph.outputs.items():
        np.testing.assert_allclose(answer[name], graph.values[source], rtol=1e-4, atol=1e-5)
        shape = engine.model.spec.outputs_by_name[name].shape
        assert shape is not None
        assert shape[1] in (-1, answer[name].shape[1])


@settings(deadline=None, max_examples=60)
@given(graphs(), st.data())
def test_cyclic_graph_is_refused(graph: Graph, data: st.DataObject) -> None:
    late = data.draw(st.sampled_from(graph.steps))["name"]
    early = data.draw(st.sampled_from(sorted({late} | graph.ancestors(late) - set(graph.inputs))))
    steps = [dict(table) for table in graph.steps]
    table = next(table for table in steps if table["name"] == early)
    name = data.draw(st.sampled_from(sorted(table["inputs"])))
    table["inputs"] = table["inputs"] | {name: late}
    typed, faults = check_pipeline(graph.entry(steps), list(SPECS), SPECS)
    assert typed is None
    assert any("without a cycle" in fault.message for fault in faults)


@settings(deadline=None, max_examples=60)
@given(graphs(), st.sampled_from(SIZES), st.data())
def test_ill_typed_graph_is_refused(graph: Graph, columns: int, data: st.DataObject) -> None:
    source = data.draw(st.sampled_from(sorted(graph.values)))
    if graph.values[source].shape[1] == columns:
        columns += 1 if columns < max(SIZES) else -1
    graph.add(call("wrong", f"m{columns}x1", {"x": source}), np.zeros((ROWS, 1), np.float32))
    faults = faults_of(graph.entry(), SPECS)
    assert len(faults) == 1
    assert faults[0].startswith(f"steps[{len(graph.steps) - 1}].inputs.x: expected float32[-1, {columns}], got float32")
