"""The keys of an entry that declare a sequence axis, in a file and in a request."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.config import ConfigError, load_settings, parse_model_entry
from frameworks.settings import OnnxModelEntry

ENTRY = "[[models.onnx_models]]\nname = 'a'\npath = 'a'\n"


def entry_of(folder: Path, text: str, **variables: str) -> OnnxModelEntry:
    file = folder / "config.toml"
    file.write_text(ENTRY + text, encoding="utf-8")
    loaded = load_settings(file, variables)
    return loaded.settings.models.onnx_models[0]


def test_they_are_read_from_a_file_a_request_and_a_variable(tmp_path: Path) -> None:
    text = 'sequence_axis = 1\npad_values = { input_ids = 7, "features.0" = -0.5 }\nmask_input = "attention_mask"'
    entry = entry_of(tmp_path, text)
    assert (entry.sequence_axis, entry.mask_input) == (1, "attention_mask")
    assert dict(entry.pad_values or ()) == {"input_ids": 7, "features.0": -0.5}
    body = {"name": "a", "path": "a", "sequence_axis": 1, "mask_input": "attention_mask"}
    body |= {"pad_values": {"input_ids": 7, "features.0": -0.5}}
    assert parse_model_entry("onnx", body) == entry
    variable = {"ROUNDHOUSE_MODELS__ONNX_MODELS__0__PAD_VALUES": json.dumps({"x": 3})}
    assert entry_of(tmp_path, "sequence_axis = 2", **variable).pad_values == (("x", 3),)


def test_without_them_there_is_no_sequence() -> None:
    entry = parse_model_entry("onnx", {"name": "a", "path": "a", "pad_values": None, "mask_input": None})
    assert isinstance(entry, OnnxModelEntry)
    assert (entry.sequence_axis, entry.pad_values, entry.mask_input) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("sequence_axis = 0", "sequence_axis", "wants at least 1, but 0 came"),
        ("sequence_axis = true", "sequence_axis", "wants a whole number, but true came"),
        ("sequence_axis = '1'", "sequence_axis", "take the quotes away"),
        ("mask_input = 'm'", "mask_input", 'goes with sequence_axis, which is not set, but "m" came'),
        ("pad_values = {x = 1}", "pad_values", "goes with sequence_axis, which is not set, but a table came"),
        ("sequence_axis = 1\nmask_input = ''", "mask_input", "wants at least 1 character"),
        ("sequence_axis = 1\npad_values = 3", "pad_values", "wants a table of input names and numbers, like { input"),
        ("sequence_axis = 1\npad_values = []", "pad_values", "wants a table of input names and numbers, like { input"),
        ("sequence_axis = 1\npad_values = {x = '0'}", "pad_values", 'wants a number for "x", but a table came'),
        ("sequence_axis = 1\npad_values = {x = true}", "pad_values", 'wants a number for "x"'),
        ("sequence_axis = 1\npad_values = {x = nan}", "pad_values", 'wants a number for "x"'),
        ("sequence_axis = 1\npad_values = {x = -inf}", "pad_values", 'wants a number for "x"'),
    ],
)
def test_what_is_wrong_is_named(text: str, key: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        entry_of(tmp_path, text)
    (fault,) = refusal.value.faults
    assert fault.key == f"models.onnx_models[0].{key}"
    assert fault.line == 4 + text.count("\n")
    assert message in fault.message


def test_a_wrong_axis_alone_is_one_fault() -> None:
    body: dict[str, Any] = {
        "name": "a",
        "path": "a",
        "sequence_axis": 0,
        "mask_input": "m",
        "pad_values": {"x": 10**400},
    }
    with pytest.raises(ConfigError) as refusal:
        parse_model_entry("onnx", body)
    assert [fault.key for fault in refusal.value.faults] == ["sequence_axis"]
