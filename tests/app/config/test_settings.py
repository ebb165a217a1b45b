"""Load settings: examples, defaults, precedence and converted values."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from app.config import (
    ConfigError,
    LoadedSettings,
    Settings,
    load_settings,
    parse_model_entry,
    settings_class,
)
from frameworks.core.settings.entries import OnnxModelEntry, TorchModelEntry
from frameworks.core.settings.entry_values import EXECUTION_PROVIDERS

ROOT = Path(__file__).parents[3]
CONTRACT_EXAMPLE = """
[server]
host = "127.0.0.1"
port = 8080

[models]
cache_dir = "./models"          # quantized copies and other derived files
max_model_size = 2147483648     # bytes of weights on disk; a larger model is refused with a clear error
roots = ["./models"]            # the only places from which models may be registered at run time

[[models.onnx_models]]
name = "bert-base"
path = "./models/bert-base.onnx"        # a file, or a folder with model.onnx and, for text models, tokenizer.json
input_shape = [1, 512]                  # optional: checked against the graph; used for warm-up
quantized = true                        # dynamic int8, made at first load and kept in cache_dir
execution_providers = ["TensorRT", "CUDA", "CPU"]   # in order of preference; the absent are skipped with a warning

[[models.torch_models]]                 # candle_models is accepted as another name of this table
name = "llama2-7b"
path = "./models/llama2-7b"             # a Hugging Face folder: config.json, *.safetensors, tokenizer.json
model_type = "llama"                    # optional, read from config.json; "bert" and "llama" families
device = "cuda"                         # "auto" (default), "cuda", "cuda:1", "mps", "cpu"
dtype = "f16"                           # f32, f16, bf16, or int8 (weights)

[memory]
pool_size = 16                          # number of size classes' free lists
max_tensor_size = 536870912             # larger tensors are never pooled
max_allocated = "16GiB"                 # the pool's own ceiling, per device
enable_memory_mapping = true            # safetensors and ONNX external data are mapped, not read
gc_threshold = 0.8                      # of max_allocated: past it idle buffers are dropped, oldest first, down to half

[performance]
max_batch_size = 32
intra_op_threads = 8                    # default: the CPUs this process may use
inter_op_threads = 1
enable_gpu = true
enable_tensorrt = false
enable_quantization = true
"""


def load(folder: Path, text: str, **variables: str) -> LoadedSettings:
    file = folder / "config.toml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file, variables)


def test_contract_example_loads(tmp_path: Path) -> None:
    loaded = load(tmp_path, CONTRACT_EXAMPLE)
    settings = loaded.settings
    bert, llama = settings.models.onnx_models[0], settings.models.torch_models[0]
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8080)
    assert (bert.name, bert.input_shape, bert.quantized) == ("bert-base", (1, 512), True)
    assert bert.execution_providers == ("TensorRT", "CUDA", "CPU")
    assert (llama.model_type, llama.device, llama.dtype) == ("llama", "cuda", "f16")
    assert settings.memory.max_allocated == 16 * 1024**3
    assert settings.performance.num_intra_op_threads() == 8
    assert bert.path == Path("./models/bert-base.onnx")
    assert loaded.resolve(Path("./models/bert-base.onnx")) == tmp_path / "models/bert-base.onnx"


def test_own_config_file_loads() -> None:
    loaded = load_settings(ROOT / "config.toml", {})
    models = loaded.settings.models
    names = [model.name for model in (*models.onnx_models, *models.torch_models)]
    assert names == ["digits", "shapes", "minilm-onnx", "minilm", "tiny-llama", "tiny-vision", "names", "sounds"]


def test_load_settings_without_file_returns_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_settings(None, {})
    assert loaded.settings == settings_class()()
    assert loaded.base_dir == tmp_path.resolve()
    assert loaded.settings.server.max_body_bytes == 128 * 1024**2


def test_flags_replace_environment_replaces_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[server]\nport = 1\nhost = "file"\ndrain_timeout_s = 3', encoding="utf-8")
    environ = {"ROUNDHOUSE_SERVER__PORT": "2", "ROUNDHOUSE_SERVER__HOST": "environment"}
    server = load_settings(file, environ, {"server.port": 3}).settings.server
    assert (server.port, server.host, server.drain_timeout_s) == (3, "environment", 3.0)


def test_relative_paths_start_at_folder_of_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", "/home/somebody")
    (tmp_path / "there/real.toml").write_text("", encoding="utf-8")
    (tmp_path / "here/link.toml").symlink_to("../there/real.toml")
    loaded = load_settings(Path("link.toml"), {})
    assert loaded.base_dir == (tmp_path / "here").resolve()
    assert loaded.resolve(Path("a/b.onnx")) == loaded.base_dir / "a/b.onnx"
    assert loaded.resolve(Path("/a/b.onnx")) == Path("/a/b.onnx")
    assert loaded.resolve(Path("~/b.onnx")) == Path("/home/somebody/b.onnx")
    assert loaded.resolve(Path("~no-such-user/b")) == loaded.base_dir / "~no-such-user/b"


def test_candle_models_are_appended_to_torch_models(tmp_path: Path) -> None:
    candle = '[[models.candle_models]]\nname = "b"\npath = "b"\nwatch = true\n'
    loaded = load(tmp_path, candle + '[[models.torch_models]]\nname = "a"\npath = "a"')
    assert [model.name for model in loaded.settings.models.torch_models] == ["a", "b"]
    assert loaded.settings.models.torch_models[1].watch


def test_load_settings_accepts_bom_and_crlf(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(b"\xef\xbb\xbf[server]\r\nport = 1\r\n")
    assert load_settings(tmp_path / "config.toml", {}).settings.server.port == 1


def test_settings_are_frozen_at_every_level() -> None:
    def check(model: BaseModel) -> None:
        for name in type(model).model_fields:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(model, name, getattr(model, name))
            inner = getattr(model, name)
            if isinstance(inner, BaseModel):
                check(inner)
            assert not isinstance(inner, list | dict)

    settings = Settings()
    check(settings)
    check(parse_model_entry("onnx", {"name": "a", "path": "b", "input_shape": [1]}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_settings(None, {}).base_dir = Path()  # type: ignore[misc]


def test_provider_dtype_and_device_names_are_normalised() -> None:
    names = ["cuda", "CPUExecutionProvider", "DmlExecutionProvider", "TensorrtExecutionProvider", "openvino", "CPU"]
    onnx = parse_model_entry("onnx", {"name": "a", "path": "b", "execution_providers": names})
    assert isinstance(onnx, OnnxModelEntry)
    assert onnx.execution_providers == ("CUDA", "CPU", "DirectML", "TensorRT", "OpenVINO")
    assert EXECUTION_PROVIDERS == ("TensorRT", "CUDA", "ROCm", "CoreML", "DirectML", "OpenVINO", "CPU")
    for spelling, dtype in {"float32": "f32", "FP16": "f16", "bfloat16": "bf16", "int8": "int8", "f32": "f32"}.items():
        body = {"name": "a", "path": "b", "dtype": spelling, "device": "CUDA:1"}
        torch = parse_model_entry("pytorch", body)
        assert isinstance(torch, TorchModelEntry)
        assert (torch.dtype, torch.device) == (dtype, "cuda:1")


def test_parse_model_entry_matches_entry_of_file() -> None:
    body = {"framework": "onnx", "name": "a", "path": "b", "quantized": "mixed", "watch": True}
    entry = parse_model_entry("onnx", body)
    assert entry == OnnxModelEntry(name="a", path=Path("b"), quantized="mixed", watch=True)
    with pytest.raises(ConfigError) as refusal:
        parse_model_entry("onnx", {"name": "a/b/c", "quantzed": True, "input_shape": [1, 0], "dtype": "f32"})
    assert {(issue.key, issue.kind) for issue in refusal.value.issues} == {
        ("name", "invalid"),
        ("path", "missing"),
        ("quantzed", "unknown_key"),
        ("input_shape[1]", "invalid"),
        ("dtype", "unknown_key"),
    }
    with pytest.raises(ConfigError, match='did you mean "pytorch"') as refusal:
        parse_model_entry("torch", {})
    assert [issue.key for issue in refusal.value.issues] == ["framework"]


@pytest.mark.parametrize(
    ("framework", "keys"),
    [
        ("onnx", {}),
        ("onnx", {"input_shape": [1, 2], "execution_providers": ["cuda", "CPU"], "version_policy": [3, 1]}),
        ("onnx", {"sequence_axis": 1, "pad_values": {"x": 7, "y": -0.5}, "mask_input": "m", "min_cosine": 0.5}),
        ("onnx", {"warm_up": [{"x": [[1, 2], [3, 4]], "s": "text"}, {"x": {"shape": [2, 3], "data": 8}}]}),
        ("onnx", {"warm_up": [{"x": {"shape": [], "data": True}}], "version_policy": "all"}),
        (
            "onnx",
            {
                "isolation": "process",
                "max_batch_seconds": 1,
                "max_process_memory": "2GiB",
                "niceness": 7,
                "cpus": "0,2-3",
            },
        ),
        ("pytorch", {"dimensions": [256, 512]}),
        ("pytorch", {"device": "CUDA:1", "dtype": "fp16", "kv_cache_bytes": "2GiB", "version_policy": "latest"}),
    ],
)
def test_dumped_entry_parses_to_equal_entry(framework: str, keys: dict[str, Any]) -> None:
    entry = parse_model_entry(framework, {"name": "a", "path": "b", **keys})
    dumped = json.loads(json.dumps(entry.model_dump(mode="json")))
    assert type(entry).model_validate(dumped) == entry
