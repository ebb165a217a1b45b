"""Every node model of the onnx package is served, and answers what ONNX Runtime alone answers."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from frameworks.types import NUMPY_DTYPES
from tests.e2e.conftest import Start
from tests.e2e.server import RunningServer
from tests.support.models.node_models import PARTS, NodeModel, NotCompared, node_models

pytestmark = pytest.mark.extended


def to_json(value: Any) -> Any:
    """Return an input as a request has it."""
    if isinstance(value, np.ndarray):
        return {"data": value.tolist(), "shape": list(value.shape)}
    return [to_json(item) for item in value] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """Return an output as a response has it: nested lists, null for NaN and infinities."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind != "f":
            return array.tolist()
        objects = array.astype(object)
        objects[~np.isfinite(array)] = None
        return objects.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def as_dtype(data: Any, dtype: str) -> Any:
    """Round the numbers of a response to the dtype that it names: JSON has the shortest digits of each."""
    if isinstance(data, list):
        return [as_dtype(item, dtype) for item in data]
    is_number = isinstance(data, float | int) and "float" in dtype and dtype in NUMPY_DTYPES
    return NUMPY_DTYPES[dtype].type(data).item() if is_number else data


def difference(model: NodeModel, wanted: dict[str, Any], outputs: dict[str, Any]) -> str | None:
    """Return how the outputs of a response differ from the wanted ones, None if they are equal."""
    if list(outputs) != list(wanted):
        return f"outputs {list(outputs)} instead of {list(wanted)}"
    for name, value in wanted.items():
        came = outputs[name]
        if isinstance(value, np.ndarray) and came["shape"] != list(value.shape):
            return f"shape {came['shape']} instead of {list(value.shape)}"
        innermost = re.findall(r"\w+", came["dtype"])[-1]
        data = as_dtype(came["data"], innermost)
        if not model.is_random and data != plain(value):
            return f"{str(data)[:200]} instead of {str(plain(value))[:200]}"
    return None


def failure(server: RunningServer, folder: Path, model: NodeModel, wanted: dict[str, Any]) -> str | None:
    """Serve a model and ask it; return what went wrong."""
    (folder / f"{model.name}.onnx").write_bytes(model.graph.SerializeToString())
    entry = {"framework": "onnx", "name": model.name, "path": f"{model.name}.onnx"}
    added = server.client.post("/models", json=entry)
    if added.status_code != 201:
        return f"refused: {added.text}"
    # Python's own JSON has the digits that round-trip, and all integers.
    body = json.dumps({"inputs": {name: to_json(value) for name, value in model.inputs.items()}})
    answer = server.post(f"/models/{model.name}/infer", body)
    problem = answer.text if answer.status_code != 200 else difference(model, wanted, answer.json()["outputs"])
    problem = problem or failure_of_open_inference(server, model, wanted)
    removed = server.client.delete(f"/models/{model.name}")
    assert removed.status_code == 200, removed.text
    return problem


def failure_of_open_inference(server: RunningServer, model: NodeModel, wanted: dict[str, Any]) -> str | None:
    """Ask a model of tensors by the Open Inference Protocol as well, unless its dtypes need binary data there."""
    tensors = server.client.get(f"/v2/models/{model.name}").json()
    datatypes = {tensor["name"]: tensor["datatype"] for tensor in (*tensors["inputs"], *tensors["outputs"])}
    values = (*model.inputs.values(), *wanted.values())
    if {"BF16", "FP16"} & set(datatypes.values()) or not all(isinstance(value, np.ndarray) for value in values):
        return None
    inputs = [
        {"name": name, "datatype": datatypes[name], "shape": list(value.shape), "data": value.ravel().tolist()}
        for name, value in model.inputs.items()
    ]
    answer = server.post(f"/v2/models/{model.name}/infer", json.dumps({"inputs": inputs}))
    if answer.status_code != 200:
        return answer.text
    for output, (name, value) in zip(answer.json()["outputs"], wanted.items(), strict=True):
        came = as_dtype(output["data"], str(value.dtype))
        if (output["name"], output["shape"]) != (name, list(value.shape)):
            return f"/v2: {output['name']} of shape {output['shape']}"
        if not model.is_random and came != plain(value.ravel()):
            return f"/v2: {str(came)[:200]} instead of {str(plain(value.ravel()))[:200]}"
    return None


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in range(1, PARTS))])
def test_node_models_answer_as_onnxruntime(part: int, start: Start, tmp_path: Path) -> None:
    server = start('[models]\nroots = ["."]\n').wait_ready()
    failures: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for model in node_models(part):
        try:
            wanted = model.run_alone()
        except NotCompared as reason:
            counts[str(reason)] += 1
            continue
        counts["compared"] += 1
        if problem := failure(server, tmp_path, model, wanted):
            failures[model.name] = problem
    assert not failures, counts
    assert counts["compared"] > counts.total() / 2
