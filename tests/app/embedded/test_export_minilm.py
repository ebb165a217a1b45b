"""The exported minilm-onnx: free dimensions, padding without effect, and a second run without work."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from app.embedded import copy_minilm, export_minilm
from app.embedded.folder import is_prepared

ROOT = Path(__file__).parents[3]
MODELS = ROOT / "models"
FOLDER = MODELS / export_minilm.NAME


@pytest.fixture(scope="module")
def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(FOLDER / export_minilm.GRAPH, providers=["CPUExecutionProvider"])


def run(session: onnxruntime.InferenceSession, rows: list[list[int]]) -> np.ndarray:
    """Hidden states, float32 [batch, sequence, 384], of token ids padded to the longest row."""
    longest = max(map(len, rows))
    token_ids = np.array([row + [0] * (longest - len(row)) for row in rows], dtype=np.int64)
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows], dtype=np.int64)
    inputs = {"input_ids": token_ids, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}
    states: np.ndarray = session.run(["last_hidden_state"], inputs)[0]
    return states


def test_graph_has_documented_inputs_and_output(session: onnxruntime.InferenceSession) -> None:
    declared = [(x.name, x.type, x.shape) for x in session.get_inputs()]
    assert declared == [(name, "tensor(int64)", ["batch", "sequence"]) for name in export_minilm.INPUTS]
    (output,) = session.get_outputs()
    assert (output.name, output.type, output.shape) == (
        "last_hidden_state",
        "tensor(float)",
        ["batch", "sequence", 384],
    )


def test_export_copies_tokenizer_and_pooling_files() -> None:
    for name in copy_minilm.TEXT_FILES:
        assert (FOLDER / name).read_bytes() == (MODELS / copy_minilm.NAME / name).read_bytes()
    assert not list(FOLDER.glob("*.data"))


def test_graph_output_ignores_padding(session: onnxruntime.InferenceSession) -> None:
    rows = [[101, *range(2000, 2000 + length), 102] for length in (0, 1, 9, 40, 254, 510)]
    batch = run(session, rows)
    assert batch.shape == (6, 512, 384)
    for row, states in zip(rows, batch, strict=True):
        np.testing.assert_allclose(states[: len(row)], run(session, [row])[0], atol=2e-5)
    assert run(session, [[101]]).shape == (1, 1, 384)


def test_recipe_depends_on_weights_and_exporter() -> None:
    recipe = export_minilm.recipe()
    assert is_prepared(FOLDER, recipe)
    for key in recipe:
        assert not is_prepared(FOLDER, recipe | {key: "another"})


def test_second_run_imports_no_framework() -> None:
    script = (
        "import json, sys\n"
        "from app.embedded.__main__ import main\n"
        "status = main([])\n"
        "frameworks = {'torch', 'transformers', 'onnx', 'onnxruntime', 'numpy'} & set(sys.modules)\n"
        "print(json.dumps([status, sorted(frameworks)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True)
    *lines, report = done.stdout.splitlines()
    names = ("minilm", "minilm-onnx", "digits", "shapes", "tiny-llama", "tiny-vision", "names", "sounds")
    assert lines == [f"models/{name}: exists" for name in names]
    assert json.loads(report) == [0, []]
