"""Test `[[pipelines]]` in config.toml: all faults at once, each with its line."""

from pathlib import Path
from typing import get_args

from app.config import check_file
from extensions.pipelines.settings import Builtin

CONFIG = """
[models]
onnx_models = [{ name = "net", path = "net.onnx" }]

[[pipelines]]
name = "net"
inputs = ["x"]
outputs = { y = "odds" }
[[pipelines.steps]]
name = "odds"
builtin = "softmax"
top_k = 3
inputs = { values = "out" }
[[pipelines.steps]]
name = "out"
model = "nets"
inputs = { x = "odds" }

[[pipelines]]
name = "second"
inputs = ["text"]
outputs = { y = "cut" }
[[pipelines.steps]]
name = "cut"
builtin = "chunks"
inputs = { text = "text" }
"""


CYCLE = "expected steps without a cycle, got odds -> out -> odds; remove one of these wires"
BUILTINS = ", ".join(f'"{name}"' for name in get_args(Builtin))


def _issues(folder: Path, text: str) -> list[str]:
    file = folder / "config.toml"
    file.write_text(text, encoding="utf-8")
    (folder / "net.onnx").touch()
    return [str(issue).replace(f"{file}:", "") for issue in check_file(file, {})]


def test_all_faults_are_reported_with_lines(tmp_path: Path) -> None:
    assert _issues(tmp_path, CONFIG) == [
        '6: pipelines[0].name: expected a name that no model and no other pipeline has, got "net"; choose another',
        '7: pipelines[0].inputs.x: expected a step that reads "x", got none; read it, or remove the input',
        '12: pipelines[0].steps[0].top_k: expected a key of the step "softmax", got top_k; its keys are axis',
        "13: pipelines[0].steps[0].inputs: " + CYCLE,
        '16: pipelines[0].steps[1].model: expected a model of the server, got "nets"; did you mean "net"?',
        f'25: pipelines[1].steps[0].builtin: expected one of {BUILTINS}, got "chunks"; did you mean "chunk"?',
    ]


def test_pipeline_of_a_pipeline_is_refused(tmp_path: Path) -> None:
    text = """
models.onnx_models = [{ name = "net", path = "net.onnx" }]
[[pipelines]]
name = "inner"
inputs = ["x"]
outputs = { y = "a" }
steps = [{ name = "a", model = "net", inputs = { x = "x" } }]
[[pipelines]]
name = "outer"
inputs = ["x"]
outputs = { y = "a" }
steps = [{ name = "a", model = "inner", inputs = { x = "x" } }]
"""
    assert _issues(tmp_path, text) == [
        '12: pipelines[1].steps[0].model: expected a model, got the pipeline "inner"; add its steps to this one'
    ]


def test_wrong_tables_are_reported(tmp_path: Path) -> None:
    text = """
[[pipelines]]
name = "p"
inputs = []
outputs = { "y 1" = "a" }
steps = [{ name = "a.b", builtin = "chunk", inputs = {}, size = [0, 4] }]
"""
    assert [issue.split(", got")[0] for issue in _issues(tmp_path, text)] == [
        '4: pipelines[0].inputs: expected names like ["text"], or types by name like { x = "float32[-1, 4]" }',
        "5: pipelines[0].outputs: expected names of 1 to 64 letters, digits, `-` and `_`, a letter first",
        "6: pipelines[0].steps[0].name: expected 1 to 64 letters, digits, `-` and `_`, a letter first",
        '6: pipelines[0].steps[0].inputs: expected a table like { text = "text" } or { x = "step.output" }',
        "6: pipelines[0].steps[0].size[0]: expected at least 1",
    ]


def test_faults_of_collection_steps_are_reported(tmp_path: Path) -> None:
    text = """
[[collections]]
name = "docs"
dimensions = 4
[[pipelines]]
name = "p"
inputs = { v = "float32[-1, 3]" }
outputs = { a = "one", b = "two" }
[[pipelines.steps]]
name = "one"
collection = "docs"
inputs = { vectors = "v" }
[[pipelines.steps]]
name = "two"
collection = "docs"
inputs = { vectors = "v" }
[pipelines.steps.filter]
year = { gte = "x" }
[[pipelines]]
name = "q"
inputs = ["v"]
outputs = { a = "one" }
steps = [{ name = "one", collection = "doc", inputs = { vectors = "v" } }]
"""
    wrong = 'expected float32[-1, 4], got float32[-1, 3] from "v"; wire another value'
    assert _issues(tmp_path, text) == [
        f"12: pipelines[0].steps[0].inputs.vectors: {wrong}",
        "18: pipelines[0].steps[1].filter.year.gte: expected a number, got a string",
        '23: pipelines[1].steps[0].collection: expected a collection of the server, got "doc"; did you mean "docs"?',
    ]
