"""Keys of a model's entry that declare its states."""

from pathlib import Path

import pytest

from app.config import ConfigError, load_settings, parse_model_entry
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.states import StateEntry

ENTRY = "[[models.onnx_models]]\nname = 'a'\npath = 'a'\n"
TABLE = "[[models.onnx_models.state]]\ninput = 'h'\noutput = 'hn'\n"


def entry_of(folder: Path, text: str) -> OnnxModelEntry:
    file = folder / "config.toml"
    file.write_text(ENTRY + text, encoding="utf-8")
    return load_settings(file, {}).settings.models.onnx_models[0]


def test_states_load_from_file_and_body(tmp_path: Path) -> None:
    assert entry_of(tmp_path, "state = 'auto'").state == "auto"
    text = "max_state_bytes = '2KiB'\nmax_sequence_idle_s = 0.5\n" + TABLE + "initial = [1, 0.5]\nshape = [2, -1]\n"
    entry = entry_of(tmp_path, text + TABLE.replace("h", "c") + "batch_axis = 1\n")
    assert entry.state == (
        StateEntry(input="h", output="hn", initial=(1, 0.5), shape=(2, -1)),
        StateEntry(input="c", output="cn", batch_axis=1),
    )
    assert (entry.max_state_bytes, entry.max_sequence_idle_s) == (2048, 0.5)
    states: list[dict[str, object]] = [{"input": "h", "output": "hn", "initial": [1, 0.5], "shape": [2, -1]}]
    states.append({"input": "c", "output": "cn", "batch_axis": 1})
    body = {"name": "a", "path": "a", "state": states, "max_state_bytes": 2048, "max_sequence_idle_s": 0.5}
    assert parse_model_entry("onnx", body) == entry


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("state = 'Auto'", "state", 'expected "auto", or 1 to 1024 tables with input and output'),
        ("state = []", "state", 'expected "auto", or 1 to 1024 tables'),
        (TABLE.replace("output = 'hn'\n", ""), "state[0].output", "expected"),
        (TABLE + "axis = 1", "state[0].axis", "unknown key"),
        (TABLE + "initial = 'x'", "state[0].initial", "expected a number, or nested lists"),
        (TABLE + "shape = [-1, -1]", "state[0].shape", "expected at most one -1, at the axis of the rows"),
        (TABLE + "shape = [-2]", "state[0].shape[0]", "expected at least -1"),
        ("max_sequence_idle_s = 0", "max_sequence_idle_s", "expected"),
        ("quantized = true\nstate = 'auto'", "state", "expected no quantized beside it"),
        ("sequence_axis = 1\nstate = 'auto'", "state", "expected no sequence_axis beside it"),
        ("cache = true\nstate = 'auto'", "state", "expected no cache beside it, as equal steps have different answers"),
        ("kernels = 'compiled'\nstate = 'auto'", "state", 'expected kernels = "onnxruntime" beside it'),
        ("device = ['cpu', 'cpu']\nstate = 'auto'", "state", "expected one device beside it"),
    ],
)
def test_invalid_state_names_key(text: str, key: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        entry_of(tmp_path, text)
    (issue,) = refusal.value.issues
    assert issue.key == f"models.onnx_models[0].{key}"
    assert message in issue.message
