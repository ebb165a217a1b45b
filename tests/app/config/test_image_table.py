"""The table `image` of an ONNX model's entry: from file, body and variable, and its errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.config import ConfigError, check_file, load_settings, parse_model_entry
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.images import ImageSettings

ENTRY = "[[models.onnx_models]]\nname = 'a'\npath = 'a'\n"
TABLE = '[models.onnx_models.image]\nresize = "shortest_edge"\nsize = 256\ncrop = [224, 192]\nstd = [0.5, 1, 2]\n'


def entry_of(folder: Path, text: str, **variables: str) -> OnnxModelEntry:
    file = folder / "config.toml"
    file.write_text(ENTRY + text, encoding="utf-8")
    return load_settings(file, variables).settings.models.onnx_models[0]


def test_image_table_loads_from_file_body_and_variable(tmp_path: Path) -> None:
    image = entry_of(tmp_path, TABLE).image
    assert image == ImageSettings(resize="shortest_edge", size=(256, 256), crop=(224, 192), std=(0.5, 1.0, 2.0))
    table = {"resize": "shortest_edge", "size": 256, "crop": [224, 192], "std": [0.5, 1, 2]}
    entry = parse_model_entry("onnx", {"name": "a", "path": "a", "image": table})
    assert isinstance(entry, OnnxModelEntry)
    assert entry.image == image
    prefix = "ROUNDHOUSE_MODELS__ONNX_MODELS__0__IMAGE"
    assert entry_of(tmp_path, "", **{prefix: json.dumps(table)}).image == image
    changed = entry_of(tmp_path, TABLE, **{f"{prefix}__SIZE": "300", f"{prefix}__RESIZE": "exact"}).image
    assert changed is not None
    assert (changed.size, changed.resize) == ((300, 300), "exact")
    assert entry_of(tmp_path, "").image is None
    assert entry_of(tmp_path, "[models.onnx_models.image]\n").image == ImageSettings()


@pytest.mark.parametrize(
    ("table", "key", "message"),
    [
        ({"siez": 3}, "image.siez", 'unknown key; did you mean "size"?'),
        ({"size": 0}, "image.size", "expected"),
        ({"size": [256, 224], "resize": "shortest_edge"}, "image.size", "expected one integer beside resize"),
        ({"std": [1, 1, 0]}, "image.std", "expected three numbers above 0"),
        ({"mean": [1, 1]}, "image.mean", "expected"),
        ({"labels": "/etc/passwd"}, "image.labels", "expected a file in the folder of the graph"),
        ({"labels": "../labels.txt"}, "image.labels", "expected a file in the folder of the graph"),
        ({"layout": "chw"}, "image.layout", 'expected one of "nchw", "nhwc"'),
    ],
)
def test_wrong_key_of_image_table_is_named(table: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_model_entry("onnx", {"name": "a", "path": "a", "image": table})
    issue = caught.value.issues[0]
    assert issue.key.startswith(key)
    assert issue.message.startswith(message)


def test_check_names_line_of_unknown_image_key(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(ENTRY + TABLE + "colour = 1\n", encoding="utf-8")
    issue = next(each for each in check_file(file, {}) if "colour" in each.key)
    assert issue.line == 9
    assert issue.message.startswith("unknown key; known keys are resize, size, crop, ")
