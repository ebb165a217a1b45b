"""Keys of a model's entry that declare a sequence axis."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.config import ConfigError, load_settings, parse_model_entry
from frameworks.core.settings.entries import OnnxModelEntry

ENTRY = "[[models.onnx_models]]\nname = 'a'\npath = 'a'\n"


def entry_of(folder: Path, text: str, **variables: str) -> OnnxModelEntry:
    file = folder / "config.toml"
    file.write_text(ENTRY + text, encoding="utf-8")
    loaded = load_settings(file, variables)
    return loaded.settings.models.onnx_models[0]


def test_sequence_keys_load_from_file_body_and_variable(tmp_path: Path) -> None:
    text = 'sequence_axis = 1\npad_values = { input_ids = 7, "features.0" = -0.5 }\nmask_input = "attention_mask"'
    entry = entry_of(tmp_path, text)
    assert (entry.sequence_axis, entry.mask_input) == (1, "attention_mask")
    assert dict(entry.pad_values or ()) == {"input_ids": 7, "features.0": -0.5}
    body = {"name": "a", "path": "a", "sequence_axis": 1, "mask_input": "attention_mask"}
    body |= {"pad_values": {"input_ids": 7, "features.0": -0.5}}
    assert parse_model_entry("onnx", body) == entry
    variable = {"ROUNDHOUSE_MODELS__ONNX_MODELS__0__PAD_VALUES": json.dumps({"x": 3})}
    assert entry_of(tmp_path, "sequence_axis = 2", **variable).pad_values == (("x", 3),)


def test_sequence_keys_default_to_none() -> None:
    entry = parse_model_entry("onnx", {"name": "a", "path": "a", "pad_values": None, "mask_input": None})
    assert isinstance(entry, OnnxModelEntry)
    assert (entry.sequence_axis, entry.pad_values, entry.mask_input) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("sequence_axis = 0", "sequence_axis", "expected at least 1, got 0"),
        ("sequence_axis = true", "sequence_axis", "expected an integer, got true"),
        ("sequence_axis = '1'", "sequence_axis", "remove the quotes"),
        ("mask_input = 'm'", "mask_input", 'expected no value without sequence_axis, got "m"; set sequence_axis'),
        ("pad_values = {x = 1}", "pad_values", "expected no value without sequence_axis, got a table"),
        ("sequence_axis = 1\nmask_input = ''", "mask_input", "expected at least 1 character"),
        (
            "sequence_axis = 1\npad_values = 3",
            "pad_values",
            "expected a table of input names and numbers, like",
        ),
        (
            "sequence_axis = 1\npad_values = []",
            "pad_values",
            "expected a table of input names and numbers, like",
        ),
        ("sequence_axis = 1\npad_values = {x = '0'}", "pad_values", 'expected a number for "x", got a table'),
        ("sequence_axis = 1\npad_values = {x = true}", "pad_values", 'expected a number for "x"'),
        ("sequence_axis = 1\npad_values = {x = nan}", "pad_values", 'expected a number for "x"'),
        ("sequence_axis = 1\npad_values = {x = -inf}", "pad_values", 'expected a number for "x"'),
    ],
)
def test_invalid_sequence_key_names_key_and_line(text: str, key: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        entry_of(tmp_path, text)
    (issue,) = refusal.value.issues
    assert issue.key == f"models.onnx_models[0].{key}"
    assert issue.line == 4 + text.count("\n")
    assert message in issue.message


def test_invalid_axis_hides_errors_of_other_keys() -> None:
    body: dict[str, Any] = {
        "name": "a",
        "path": "a",
        "sequence_axis": 0,
        "mask_input": "m",
        "pad_values": {"x": 10**400},
    }
    with pytest.raises(ConfigError) as refusal:
        parse_model_entry("onnx", body)
    assert [issue.key for issue in refusal.value.issues] == ["sequence_axis"]
