"""Keys of a model's entry that give the values of its warm-up."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.config import ConfigError, check_file, load_settings, parse_model_entry
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.values import GivenTensor
from tests.support.models import onnx_graphs

ENTRY = "[[models.onnx_models]]\nname = 'a'\npath = 'a'\n"
TABLES = (
    "[[models.onnx_models.warm_up]]\nx = [[1, 2]]\n[[models.onnx_models.warm_up]]\nx = {data = [0.5], shape = [1, 1]}\n"
)
READ = ((("x", GivenTensor(((1, 2),))),), (("x", GivenTensor((0.5,), (1, 1))),))


def entry_of(folder: Path, text: str, **variables: str) -> OnnxModelEntry:
    file = folder / "config.toml"
    file.write_text(ENTRY + text, encoding="utf-8")
    return load_settings(file, variables).settings.models.onnx_models[0]


def test_tables_load_from_file_body_and_variable(tmp_path: Path) -> None:
    assert entry_of(tmp_path, TABLES).warm_up == READ
    tables: list[dict[str, Any]] = [{"x": [[1, 2]]}, {"x": {"data": [0.5], "shape": [1, 1]}}]
    body = parse_model_entry("onnx", {"name": "a", "path": "a", "warm_up": tables})
    assert isinstance(body, OnnxModelEntry)
    assert body.warm_up == READ
    variable = {"ROUNDHOUSE_MODELS__ONNX_MODELS__0__WARM_UP": json.dumps(tables)}
    assert entry_of(tmp_path, "", **variable).warm_up == READ


def test_file_of_values_is_named_beside_graph(tmp_path: Path) -> None:
    assert entry_of(tmp_path, "input_values = 'values.npz'").input_values == "values.npz"
    assert entry_of(tmp_path, "").input_values is None


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("input_values = '/tmp/values.npz'", "input_values", "expected a .npz file in the folder of the model's graph"),
        ("input_values = '../values.npz'", "input_values", "expected a .npz file in the folder of the model's graph"),
        ("input_values = 'values.npy'", "input_values", "expected a .npz file in the folder of the model's graph"),
        ("input_values = 3", "input_values", "expected a string"),
        ("warm_up = []", "warm_up", "expected 1 to 16 tables of input names and values"),
        ("warm_up = {x = 1}", "warm_up", "expected 1 to 16 tables"),
        ("warm_up = [1]", "warm_up", "expected tables of input names and values, like"),
        ("warm_up = [{}]", "warm_up", "expected tables of input names and values, like"),
        ("warm_up = [{x = 1979-05-27}]", "warm_up", 'expected numbers, booleans or strings, flat or nested, for "x"'),
        ("warm_up = [{x = {data = 1}}]", "warm_up", 'expected data and shape (a list of sizes) in the table of "x"'),
        ("warm_up = [{x = {data = 1, shape = [-1]}}]", "warm_up", "expected data and shape (a list of sizes)"),
        ("input_values = 'a.npz'\nwarm_up = [{x = 1}]", "warm_up", "expected input_values or warm_up, got both"),
    ],
)
def test_unsuitable_keys_are_named(tmp_path: Path, text: str, key: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        entry_of(tmp_path, text)
    [issue] = refusal.value.issues
    assert issue.key == f"models.onnx_models[0].{key}"
    assert message in issue.message


def test_check_finds_absent_file_of_values(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    onnx_graphs.save(onnx_graphs.add(), tmp_path / "a")
    file = tmp_path / "config.toml"
    file.write_text(f"[models]\nroots = ['.']\n{ENTRY}input_values = 'values.npz'\n", encoding="utf-8")
    (issue,) = (issue for issue in check_file(file, {}) if issue.key.endswith("input_values"))
    assert (issue.kind, issue.line) == ("not_found", 6)
    assert "expected a file in the folder of the graph" in issue.message
    np.savez(tmp_path / "a" / "values.npz", a=np.zeros(1))
    assert not [issue for issue in check_file(file, {}) if issue.key.endswith("input_values")]
    file.write_text(file.read_text(encoding="utf-8").replace("path = 'a'", "path = 'a/model.onnx'"), encoding="utf-8")
    assert not [issue for issue in check_file(file, {}) if issue.key.endswith("input_values")]
