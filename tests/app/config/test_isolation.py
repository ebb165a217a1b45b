"""Keys of a model's entry that declare a process of its own."""

from pathlib import Path

import pytest

from app.admin.models.registrations import read_entry
from app.config import ConfigError, LoadedSettings, load_settings, parse_model_entry
from frameworks.core.errors import InvalidInput
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings

ENTRY = "[[models.onnx_models]]\nname = 'a'\npath = 'a'\n"
KEYS = "max_batch_seconds = 2.5\nmax_process_memory = '2GiB'\nniceness = 7\ncpus = '0,2-3'\n"
BODY = {
    "name": "a",
    "path": "a",
    "max_batch_seconds": 2.5,
    "max_process_memory": "2GiB",
    "niceness": 7,
    "cpus": "0,2-3",
}
ISOLATED = "[performance]\nisolation = 'process'\n"


def load(folder: Path, text: str, **variables: str) -> LoadedSettings:
    file = folder / "config.toml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file, variables)


def entry_of(folder: Path, text: str, **variables: str) -> OnnxModelEntry:
    return load(folder, text, **variables).settings.models.onnx_models[0]


def test_keys_load_from_file_and_body(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, ENTRY + "isolation = 'process'\n" + KEYS)
    assert (entry.isolation, entry.max_batch_seconds, entry.cpus) == ("process", 2.5, "0,2-3")
    assert (entry.max_process_memory, entry.niceness) == (2 * 1024**3, 7)
    assert parse_model_entry("onnx", {**BODY, "isolation": "process"}) == entry


@pytest.mark.parametrize(
    ("own", "default", "effective"),
    [(None, "none", "none"), (None, "process", "process"), ("none", "process", "none"), ("process", "none", "process")],
)
def test_entry_overrides_isolation_of_performance(own: str | None, default: str, effective: str) -> None:
    entry = OnnxModelEntry.model_validate({"name": "a", "path": "a", "isolation": own})
    assert PerformanceSettings.model_validate({"isolation": default}).isolation_of(entry) == effective
    assert PerformanceSettings().isolation == "none"


@pytest.mark.parametrize("key", ["max_batch_seconds", "max_process_memory", "niceness", "cpus"])
def test_keys_without_process_refused(key: str, tmp_path: Path) -> None:
    body = {"framework": "onnx", "name": "a", "path": "a", key: BODY[key]}
    line = next(line for line in KEYS.splitlines() if line.startswith(key))
    for text in (ENTRY + line, ENTRY + "isolation = 'none'\n" + line, ISOLATED + ENTRY + "isolation = 'none'\n" + line):
        with pytest.raises(ConfigError) as refusal:
            load(tmp_path, text)
        (issue,) = refusal.value.issues
        assert (issue.key, issue.line) == (f"models.onnx_models[0].{key}", len(text.splitlines()))
        assert issue.message.startswith('expected no value without isolation = "process", got ')
    with pytest.raises(InvalidInput, match=f'{key}: expected no value without isolation = "process"'):
        read_entry(body)
    with pytest.raises(InvalidInput, match="expected no value without"):
        read_entry({**body, "isolation": "none"}, "process")
    assert read_entry(body, "process") == parse_model_entry("onnx", {**body, "isolation": None}, "process")


def test_default_isolation_permits_keys(tmp_path: Path) -> None:
    assert entry_of(tmp_path, ISOLATED + ENTRY + KEYS).cpus == "0,2-3"
    variable = {"ROUNDHOUSE_PERFORMANCE__ISOLATION": "process"}
    assert entry_of(tmp_path, ENTRY + KEYS, **variable).cpus == "0,2-3"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("isolation = 'proces'", 'expected one of "none", "process", got "proces"; did you mean "process"?'),
        ("max_batch_seconds = 0", "expected more than 0, got 0"),
        ("max_batch_seconds = '1'", "remove the quotes"),
        ("max_process_memory = 0", "expected at least 1, got 0"),
        ("max_process_memory = 'much'", "expected a size"),
        ("cpus = 4", "expected a string, got 4"),
        ("cpus = '7-4'", 'expected numbers of CPUs and ranges, like "4-7" or "0,2-3", got "7-4"'),
    ],
)
def test_invalid_value_names_its_key(line: str, message: str, tmp_path: Path) -> None:
    own = "" if line.startswith("isolation") else "isolation = 'process'\n"
    with pytest.raises(ConfigError) as refusal:
        load(tmp_path, ENTRY + own + line)
    (issue,) = refusal.value.issues
    assert issue.key == f"models.onnx_models[0].{line.split(maxsplit=1)[0]}"
    assert message in issue.message


def test_unknown_isolation_is_one_issue(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(tmp_path, ENTRY + KEYS + "isolation = 'thread'")
    assert [issue.key for issue in refusal.value.issues] == ["models.onnx_models[0].isolation"]


@pytest.mark.parametrize("device", [["cpu"], ["cuda:0", "CUDA:1", "cuda:0"], "cuda:*", ["cpu"] * 64])
def test_several_devices_imply_processes(device: object, tmp_path: Path) -> None:
    entry = parse_model_entry("onnx", {**BODY, "device": device})
    expected = tuple(each.lower() for each in device) if isinstance(device, list) else device
    assert (entry.device, entry.isolation) == (expected, None)
    assert PerformanceSettings().isolation_of(entry) == "process"
    assert entry_of(tmp_path, ENTRY + KEYS + f"device = {device!r}\n") == entry


def test_several_ranks_imply_own_process(tmp_path: Path) -> None:
    """Keys of a process need no isolation beside them."""
    text = ENTRY.replace("onnx", "torch") + KEYS + "tensor_parallel = 2\n"
    entry = load(tmp_path, text).settings.models.torch_models[0]
    assert (entry.num_ranks, entry.isolation) == (2, None)
    assert PerformanceSettings().isolation_of(entry) == "process"


@pytest.mark.parametrize("device", [["cpu"], "CUDA:*"])
def test_several_devices_without_process_refused(device: object, tmp_path: Path) -> None:
    for own in ("isolation = 'none'\n", "isolation = 'process'\n"):
        text = ENTRY + own + f"device = {device!r}\n"
        if "process" in own:
            assert entry_of(tmp_path, text).isolation == "process"
            continue
        with pytest.raises(ConfigError) as refusal:
            load(tmp_path, text)
        (issue,) = refusal.value.issues
        assert (issue.key, issue.line) == ("models.onnx_models[0].device", 5)
        assert issue.message.startswith('expected one device beside isolation = "none", got ')
        assert issue.message.endswith('; name one, or set isolation = "process"')


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ([], "expected 1 to 64 devices"),
        (["cpu"] * 65, "expected 1 to 64 devices"),
        (["cpu", "tpu"], 'expected "auto", "cuda"'),
        (["cuda:*"], 'expected "auto", "cuda"'),
        ([["cpu"]], 'expected "auto", "cuda"'),
    ],
)
def test_wrong_devices_refused(device: object, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_model_entry("pytorch", {"name": "a", "path": "a", "device": device})
    (issue,) = refusal.value.issues
    assert (issue.key, message in issue.message) == ("device", True), issue


@pytest.mark.parametrize(("text", "device"), [("cpu", "cpu"), ('["cpu", "cuda:1"]', ("cpu", "cuda:1"))])
def test_device_loads_from_environment(text: str, device: object, tmp_path: Path) -> None:
    entry = entry_of(tmp_path, ENTRY, ROUNDHOUSE_MODELS__ONNX_MODELS__0__DEVICE=text)
    assert entry.device == device
