"""Capture the graphs of a model at its warm-up, and compare a replay of each with a run."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort

from frameworks.core.errors import InvalidModel, OutOfMemory, RoundhouseError, without_paths
from frameworks.core.progress import phase, step
from frameworks.onnx.cuda.graph_policy import (
    buckets_of,
    describe_graphs,
    has_free_rows,
    reason_not_capturable,
    reason_not_captured,
)
from frameworks.onnx.cuda.graph_runs import GraphRuns
from frameworks.onnx.graph_summary import GraphSummary
from frameworks.onnx.providers import GraphDevice
from frameworks.onnx.session import is_out_of_memory, plain_message
from frameworks.scheduling.merging.comparison import is_close, random_row, tolerance_of
from frameworks.types import Array, ModelSpec, TensorType, Value


def open_graph_runs(
    session: ort.InferenceSession, device: GraphDevice, spec: ModelSpec, summary: GraphSummary | None, path: Path
) -> GraphRuns:
    """Return the runs of a session whose graphs are captured later. Raises InvalidModel where none can be captured."""
    operators = frozenset[str]() if summary is None else summary.operators
    if (reason := reason_not_capturable(spec, operators)) is not None:
        raise InvalidModel(f"{path}: cuda_graph: {reason}")
    return GraphRuns(session, device, spec)


def capture_graphs(runs: GraphRuns, spec: ModelSpec, accepted: Mapping[str, Value] | None, path: Path) -> ModelSpec:
    """Capture a graph for each bucket of rows, or one for a fixed shape; return the spec with them and their memory.

    `accepted`: inputs that the graph ran with at its warm-up. Raises InvalidModel where a graph cannot be captured, and
    where a replay differs from a run; OutOfMemory.
    """
    if (reason := reason_not_captured(spec)) is not None:
        raise InvalidModel(f"{path}: cuda_graph: {reason}")
    assert accepted is not None
    names = [declared.name for declared in spec.inputs if declared.required]
    ran = {name: value for name in names if isinstance(value := accepted[name], np.ndarray)}
    buckets = buckets_of(runs.device.max_rows) if has_free_rows(spec) else ()
    phase("capturing graphs", max(1, len(buckets)), "graphs")
    # The largest first: the arena then has what the others need.
    for rows in reversed(buckets or (None,)):
        _capture(runs, spec, ran, rows, path)
        step()
    return replace(spec, graphs=describe_graphs(buckets), memory_bytes=spec.memory_bytes + runs.size_bytes)


def _capture(runs: GraphRuns, spec: ModelSpec, ran: Mapping[str, Array], rows: int | None, path: Path) -> None:
    """Capture one graph, for so many rows of the inputs that ran. Errors as of `capture_graphs`."""
    output_names = tuple(declared.name for declared in spec.outputs)
    try:
        inputs = _with_rows(spec, ran, rows)
        outputs = runs.run_eagerly({**inputs}, output_names)
        arrays = {name: value for name, value in outputs.items() if isinstance(value, np.ndarray)}
        if rows is not None and any(value.shape[:1] != (rows,) for value in arrays.values()):
            raise InvalidModel(f"{path}: cuda_graph: expected a row of each output for a row; remove cuda_graph")
        runs.capture(inputs, arrays, rows)
        # Other values than those of the capture: a replay of a broken graph returns the captured ones again.
        others, wanted = _other_run(runs, spec, inputs, output_names) or (inputs, outputs)
        replayed = runs.run({**others}, output_names)
    except RoundhouseError:
        raise
    except Exception as error:
        message = plain_message(error)
        if isinstance(error, MemoryError) or is_out_of_memory(message):
            what = "the captured graphs do not fit into memory; lower max_batch_size, or remove cuda_graph"
            raise OutOfMemory(f"{path}: {what}: {message}", f"{what}: {without_paths(message)}") from error
        raise InvalidModel(
            f"{path}: cuda_graph: the graph cannot be captured ({message}); remove cuda_graph"
        ) from error
    for name, value in wanted.items():
        if not is_close(replayed[name], value, tolerance_of(spec, name)):
            raise InvalidModel(
                f'{path}: cuda_graph: expected a replay that equals a run, got another output "{name}"; remove '
                "cuda_graph"
            )


def _other_run(
    runs: GraphRuns, spec: ModelSpec, inputs: dict[str, Array], output_names: tuple[str, ...]
) -> tuple[dict[str, Array], dict[str, Value]] | None:
    """Return random inputs of the same shapes and their outputs; None where the graph refuses them."""
    random = np.random.default_rng(0)
    others = dict(inputs)
    for declared in spec.inputs:
        if declared.name in inputs and (shape := inputs[declared.name].shape):
            assert isinstance(declared.type, TensorType)
            others[declared.name] = np.concatenate([random_row(declared, shape, random) for _ in range(shape[0])])
    try:
        return others, runs.run_eagerly({**others}, output_names)
    except Exception as error:
        if isinstance(error, MemoryError) or is_out_of_memory(plain_message(error)):
            raise
        return None


def _with_rows(spec: ModelSpec, values: Mapping[str, Array], rows: int | None) -> dict[str, Array]:
    """Return inputs of so many rows: the first one again and again. `rows` None: as they are."""
    if rows is None:
        return dict(values)
    by_name = spec.inputs_by_name
    return {
        name: np.repeat(value[:1], rows, axis=0) if (by_name[name].shape or ())[:1] == (-1,) else value
        for name, value in values.items()
    }
