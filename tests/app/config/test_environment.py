"""Environment variables: every setting has one, values are converted, unknown ones are issues."""

import sys
from pathlib import Path

import pytest

from app.config import CONFIG_VARIABLE, ConfigError, ConfigIssue, Settings, load_settings, settings_class
from app.config.environment import find_setting, setting_names


def settings_of(folder: Path, text: str, environ: dict[str, str]) -> Settings:
    (folder / "config.toml").write_text(text, encoding="utf-8")
    return load_settings(folder / "config.toml", environ).settings


def issues_of(environ: dict[str, str]) -> tuple[ConfigIssue, ...]:
    with pytest.raises(ConfigError) as refusal:
        load_settings(None, environ)
    return refusal.value.issues


def test_text_is_converted_to_setting_type() -> None:
    environ = {
        "ROUNDHOUSE_SERVER__PORT": "9000",
        "roundhouse_server__host": "0.0.0.0",
        "ROUNDHOUSE_SERVER__DRAIN_TIMEOUT_S": "2.5",
        "ROUNDHOUSE_SERVER__GRPC_PORT": "9001",
        "ROUNDHOUSE_SERVER__WORKERS": "2",
        "ROUNDHOUSE_PERFORMANCE__ENABLE_GPU": "false",
        "ROUNDHOUSE_MEMORY__MAX_ALLOCATED": "2GiB",
        "ROUNDHOUSE_MEMORY__MAX_TENSOR_SIZE": "1024",
        "ROUNDHOUSE_MODELS__ROOTS": '["./a", "/b"]',
        "ROUNDHOUSE_MODELS__CACHE_DIR": "./c",
        "ROUNDHOUSE_MODELS__ONNX_MODELS": '[{"name": "a", "path": "a", "quantized": true}]',
        "ROUNDHOUSE_LOGGING__LEVEL": "debug",
        "ROUNDHOUSE_SERVER__ALLOWED_HOSTS": '["models.example.org"]',
        "PATH": "/bin",
    }
    settings = load_settings(None, environ).settings
    assert settings.server.model_dump() == {
        "host": "0.0.0.0",
        "port": 9000,
        "grpc_port": 9001,
        "grpc_max_connection_age_s": 3600.0,
        "allowed_hosts": ("models.example.org",),
        "media_hosts": (),
        "cors_origins": (),
        "root_path": "",
        "trusted_proxies": (),
        "workers": 2,
        "web": True,
        "tls_certificate": None,
        "tls_key": None,
        "tls_client_ca": None,
        "max_body_bytes": 128 * 1024**2,
        "max_buffered_bytes": 512 * 1024**2,
        "max_connections": 20_000,
        "header_timeout_s": 10.0,
        "body_timeout_s": 30.0,
        "drain_timeout_s": 2.5,
    }
    assert settings.performance.enable_gpu is False
    assert (settings.memory.max_allocated, settings.memory.max_tensor_size) == (2 * 1024**3, 1024)
    assert (settings.models.roots, settings.models.cache_dir) == ((Path("./a"), Path("/b")), Path("./c"))
    assert settings.models.onnx_models[0].quantized is True
    assert settings.logging.level == "debug"


def test_variable_for_table_merges_key_variable_wins(tmp_path: Path) -> None:
    environ = {"ROUNDHOUSE_SERVER": '{"port": 2, "host": "table"}', "ROUNDHOUSE_SERVER__HOST": "own"}
    server = settings_of(tmp_path, '[server]\nport = 1\nhost = "file"\ndrain_timeout_s = 3', environ).server
    assert (server.port, server.host, server.drain_timeout_s) == (2, "own", 3.0)


def test_variables_set_one_key_and_add_models(tmp_path: Path) -> None:
    text = '[[models.candle_models]]\nname = "a"\npath = "a"\n[[models.onnx_models]]\nname = "b"\npath = "b"'
    environ = {
        "ROUNDHOUSE_MODELS__CANDLE_MODELS__0__DEVICE": "cpu",
        "ROUNDHOUSE_MODELS__ONNX_MODELS__0__QUANTIZED": "mixed",
    }
    for number in range(1, 12):  # 10 sorts after 9
        environ[f"ROUNDHOUSE_MODELS__ONNX_MODELS__{number}__NAME"] = f"n{number}"
        environ[f"ROUNDHOUSE_MODELS__ONNX_MODELS__{number}__PATH"] = "p"
    models = settings_of(tmp_path, text, environ).models
    assert models.torch_models[0].device == "cpu"
    assert models.onnx_models[0].quantized == "mixed"
    assert [model.name for model in models.onnx_models[1:]] == [f"n{number}" for number in range(1, 12)]


def test_every_setting_has_a_variable() -> None:
    for name in setting_names(settings_class()):
        location, annotation = find_setting(settings_class(), [str(step) for step in name])
        assert location == name
        assert annotation is not None


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("ROUNDHOUSE_SERVER__PRT", "did you mean ROUNDHOUSE_SERVER__PORT?"),
        ("ROUNDHOUSE_SERVER_PORT", "did you mean ROUNDHOUSE_SERVER__PORT?"),
        ("ROUNDHOUSE_PORT", "did you mean ROUNDHOUSE_SERVER__PORT?"),
        ("ROUNDHOUSE_SERVER__PORT__X", "did you mean ROUNDHOUSE_SERVER__PORT?"),
        ("ROUNDHOUSE_MODELS__ONNX_MODELS__3__PTH", "did you mean ROUNDHOUSE_MODELS__ONNX_MODELS__0__PATH?"),
        ("ROUNDHOUSE_MODELS__ONNX_MODELS__PATH", "did you mean ROUNDHOUSE_MODELS__ONNX_MODELS__0__PATH?"),
        ("ROUNDHOUSE_", "names look like ROUNDHOUSE_SERVER__PORT"),
    ],
)
def test_unknown_variable_is_an_issue(name: str, near: str) -> None:
    (issue,) = issues_of({name: "1"})
    assert (issue.origin, issue.kind, issue.line) == (name, "unknown_variable", None)
    assert str(issue) == f"{name}: unknown variable; {near}"


@pytest.mark.parametrize(
    ("name", "text", "key", "message"),
    [
        ("ROUNDHOUSE_SERVER__PORT", "x", "server.port", 'expected an integer, got "x"'),
        ("ROUNDHOUSE_SERVER__PORT", "", "server.port", 'expected an integer, got ""'),
        ("ROUNDHOUSE_SERVER__PORT", "70000", "server.port", "expected at most 65535, got 70000"),
        ("ROUNDHOUSE_SERVER__DRAIN_TIMEOUT_S", "nan", "server.drain_timeout_s", "expected a finite number, got nan"),
        (
            "ROUNDHOUSE_PERFORMANCE__ENABLE_GPU",
            "perhaps",
            "performance.enable_gpu",
            'expected true or false, got "perhaps"',
        ),
        ("ROUNDHOUSE_SERVER", "3", "server", "expected a table, got 3"),
        ("ROUNDHOUSE_SERVER", "port", "server", 'expected JSON like {...}, got "port"'),
        (
            "ROUNDHOUSE_SERVER",
            '{"port": "1"}',
            "server.port",
            'expected an integer, got "1"; remove the quotes',
        ),
        ("ROUNDHOUSE_SERVER", '{"prt": 1}', "server.prt", 'unknown key; did you mean "port"?'),
        ("ROUNDHOUSE_SERVER", '{"\\ud800": 1}', "server", "expected JSON like {...}"),
        ("ROUNDHOUSE_MODELS__ROOTS", "./models", "models.roots", 'expected JSON like [...], got "./models"'),
        pytest.param("ROUNDHOUSE_MODELS__ROOTS", "[" * 10**5, "models.roots", "expected JSON like [...]", id="deep"),
        ("ROUNDHOUSE_MODELS__ONNX_MODELS", "{}", "models.onnx_models", "expected a list, got a table"),
        (
            "ROUNDHOUSE_MODELS__ONNX_MODELS__0",
            "3",
            "models.onnx_models[0]",
            "expected a table, got 3",
        ),
        (
            "ROUNDHOUSE_MODELS__ONNX_MODELS__1__PATH",
            "x",
            "models.onnx_models[1].path",
            "expected the index of an item or the next index",
        ),
        ("ROUNDHOUSE_SERVER__HOST", "\udcff", "server.host", "expected valid Unicode text"),
    ],
)
def test_invalid_value_names_variable_and_key(name: str, text: str, key: str, message: str) -> None:
    (issue,) = issues_of({name: text})
    assert (issue.origin, issue.key) == (name, key)
    assert message in issue.message
    assert str(issue).encode()


def test_variable_in_two_spellings_is_an_issue() -> None:
    (issue,) = issues_of({"ROUNDHOUSE_SERVER__PORT": "1", "roundhouse_server__port": "2"})
    assert issue.kind == "duplicate"
    assert "ROUNDHOUSE_SERVER__PORT" in str(issue)
    assert "roundhouse_server__port" in str(issue)


def test_api_key_is_no_setting() -> None:
    assert load_settings(None, {"ROUNDHOUSE_API_KEY": "a secret"}).settings == settings_class()()
    with pytest.raises(ConfigError, match="roundhouse_api_key: unknown variable") as refused:
        load_settings(None, {"roundhouse_api_key": "a secret"})
    assert "a secret" not in str(refused.value)


def test_kubernetes_service_variables_are_ignored() -> None:
    kubernetes = {
        "ROUNDHOUSE_SERVICE_HOST": "10.0.0.1",
        "ROUNDHOUSE_SERVICE_PORT": "8080",
        "ROUNDHOUSE_SERVICE_PORT_HTTP": "8080",
        "ROUNDHOUSE_PORT": "tcp://10.0.0.1:8080",
        "ROUNDHOUSE_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "ROUNDHOUSE_PORT_8080_TCP_ADDR": "10.0.0.1",
        "ROUNDHOUSE_GPU_SERVICE_HOST": "10.0.0.2",
    }
    assert load_settings(None, {**kubernetes, CONFIG_VARIABLE: "x.toml"}).settings == settings_class()()


def test_flags_are_validated() -> None:
    with pytest.raises(ConfigError) as refusal:
        load_settings(None, {}, {"server.port": 70000, "server.prt": 1, "server.host": ""})
    assert [(issue.origin, issue.key, issue.kind) for issue in refusal.value.issues] == [
        ("command line", "server.prt", "unknown_key"),
        ("command line", "server.host", "invalid"),
        ("command line", "server.port", "invalid"),
    ]
    entry = {"name": "a", "path": "b"}
    flags = {"server.port": "3", "models": {"candle_models": []}, "models.onnx_models": [entry]}
    settings = load_settings(None, {}, flags).settings
    assert flags["models"] == {"candle_models": []}  # not changed
    assert (settings.server.port, settings.models.onnx_models[0].name) == (3, "a")


def test_variable_does_not_hide_issue_of_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("server = 3\nmodels.onnx_models = 4", encoding="utf-8")
    environ = {"ROUNDHOUSE_SERVER__PORT": "1", "ROUNDHOUSE_MODELS__ONNX_MODELS__0__PATH": "x"}
    with pytest.raises(ConfigError) as refusal:
        load_settings(file, environ)
    assert [(issue.line, issue.key) for issue in refusal.value.issues] == [(1, "server"), (2, "models.onnx_models")]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other rules")
@pytest.mark.parametrize(("chosen", "expected"), [("/c", "/c"), ("c", "/h/.cache"), ("", "/h/.cache")])
def test_caches_are_in_the_user_cache_folder(monkeypatch: pytest.MonkeyPatch, chosen: str, expected: str) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_CACHE_HOME", chosen)
    assert load_settings(None, {}).settings.models.cache_dir == Path(expected) / "roundhouse"


def test_caches_without_a_home_are_in_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", home)
    assert load_settings(None, {}).settings.models.cache_dir == Path("./models")
