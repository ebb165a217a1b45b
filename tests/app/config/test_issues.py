"""Issues of a config file: all of them at once, each with its line."""

import os
import re
from pathlib import Path

import pytest

from app.config import ConfigError, ConfigIssue, check_file, load_settings
from app.config.issues import describe_error, format_value


def issues_of(folder: Path, text: str | bytes) -> tuple[ConfigIssue, ...]:
    file = folder / "config.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as refusal:
        load_settings(file, {})
    assert str(refusal.value) == "\n".join(map(str, refusal.value.issues))
    return refusal.value.issues


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        ("\n[serve]", 2, "serve", 'unknown key; did you mean "server"?'),
        ("port = 1", 1, "port", "unknown key here; move it to [server]"),
        ("[server]\nprt = 1", 2, "server.prt", 'unknown key; did you mean "port"?'),
        ("[cache]\nzz = 1", 2, "cache.zz", "unknown key; known keys are max_bytes, ttl_s"),
        ('[server]\n"a b".c = 1', 2, 'server."a b"', "unknown key; known keys are"),
        ('[server]\n"\\n" = 1', 2, 'server."\\n"', "unknown key; known keys are"),
        ("[server]\nmodels = 1", 2, "server.models", "unknown key here; move it to .* or the top of the file"),
        ("[server]\n\nport = '8080'", 3, "server.port", 'expected an integer, got "8080"; remove the quotes'),
        ("[server]\nport = 'x'", 2, "server.port", 'expected an integer, got "x"'),
        ("[server]\nport = true", 2, "server.port", "expected an integer, got true"),
        ("[server]\nport = 80.0", 2, "server.port", "expected an integer, got 80.0"),
        ("[server]\nport = 65536", 2, "server.port", "expected at most 65535, got 65536"),
        ("[server]\nport = -1", 2, "server.port", "expected at least 0, got -1"),
        (f"[server]\nport = 0x{'f' * 5000}", 2, "server.port", "expected at most 65535, got a very large number"),
        (
            "[server]\nmax_body_bytes = '1GiB'\nmax_buffered_bytes = '1MiB'",
            3,
            "server.max_buffered_bytes",
            'expected at least max_body_bytes, 1073741824, got "1MiB"; raise it or lower max_body_bytes',
        ),
        (
            "[server]\nmax_body_bytes = '1GiB'",
            1,
            "server.max_buffered_bytes",
            "expected at least max_body_bytes, 1073741824, got 536870912; raise it or lower max_body_bytes",
        ),
        ("[server]\nhost = 3", 2, "server.host", "expected a string, got 3"),
        ("[server]\nhost = ''", 2, "server.host", 'expected at least 1 character, got ""'),
        ("[server]\ndrain_timeout_s = nan", 2, "server.drain_timeout_s", "expected a finite number, got nan"),
        ("[server]\ndrain_timeout_s = '3.5'", 2, "server.drain_timeout_s", "remove the quotes"),
        ("[memory]\ngc_threshold = 0", 2, "memory.gc_threshold", "expected more than 0, got 0"),
        ("[memory]\ngc_threshold = 80", 2, "memory.gc_threshold", "expected at most 1, got 80"),
        ("[memory]\nmax_allocated = '2 parsecs'", 2, "memory.max_allocated", 'expected a size: .* got "2 parsecs"'),
        ("[memory]\nmax_allocated = 0", 2, "memory.max_allocated", "expected at least 1, got 0"),
        (
            "[performance]\nenable_gpu = 'true'",
            2,
            "performance.enable_gpu",
            "expected true or false, .* remove the quotes",
        ),
        ("[performance]\nenable_gpu = 1", 2, "performance.enable_gpu", "expected true or false, got 1"),
        ("[logging]\nlevel = 'warn'", 2, "logging.level", 'expected one of .*got "warn"; did you mean "warning"?'),
        ("[logging]\nlevel = 1979-05-27", 2, "logging.level", "expected one of .*, got 1979-05-27"),
        ("server = 3", 1, "server", "expected a table, got 3"),
        ("[[server]]", 1, "server", "expected a table, got a list"),
        ("models = 3", 1, "models", "expected a table, got 3"),
        ("[models]\nroots = './models'", 2, "models.roots", r'expected a list, got "./models"'),
        (
            "[models]\nroots = [\n'a',\n'']",
            4,
            "models.roots[1]",
            'expected the path of a file or folder, got ""',
        ),
        ("[models.onnx_models]", 1, "models.onnx_models", "expected a list, got a table"),
        ("[models.candle_models]", 1, "models.candle_models", "expected a list, got a table"),
        ("[models]\nonnx_models = [3]", 2, "models.onnx_models[0]", "expected a table, got 3"),
    ],
)
def test_issue_names_line_key_and_message(text: str, line: int, key: str, message: str, tmp_path: Path) -> None:
    (issue,) = issues_of(tmp_path, text)
    assert (issue.line, issue.key) == (line, key)
    assert re.search(re.escape(message).replace(r"\.\*", ".*"), issue.message), issue.message
    assert issue.kind == ("unknown_key" if "unknown key" in message else "invalid")
    assert str(issue) == f"{tmp_path}/config.toml:{line}: {key}: {issue.message}"


@pytest.mark.parametrize(
    ("setting", "key", "message"),
    [
        ("quantzed = true", "quantzed", 'unknown key; did you mean "quantized"?'),
        ("dtype = 'f32'", "dtype", "unknown key here; move it to [[models.torch_models]]"),
        ("quantized = 'yes'", "quantized", 'expected true, false or "mixed", got "yes"'),
        ("input_shape = [1, -1]", "input_shape[1]", "expected at least 1, got -1"),
        ("input_shape = 3", "input_shape", "expected a list, got 3"),
        ("execution_providers = ['CUDAA']", "execution_providers[0]", 'got "CUDAA"; did you mean "CUDA"?'),
        (
            "execution_providers = ['TPU']",
            "execution_providers[0]",
            'expected one of "TensorRT", "CUDA", "ROCm", "CoreML"',
        ),
        ("execution_providers = []", "execution_providers", 'expected at least one name, like ["CPU"]'),
        ("execution_providers = [1]", "execution_providers[0]", "got 1"),
        ("max_batch_size = 0", "max_batch_size", "expected at least 1, got 0"),
        ("min_cosine = 1.5", "min_cosine", "expected at most 1, got 1.5"),
        ("load = 'never'", "load", 'expected one of "startup", "lazy", got "never"'),
        (
            "version_policy = 3",
            "version_policy",
            'expected "latest", "all" or a list of version numbers, like [1, 3], got 3',
        ),
        ("version_policy = [0]", "version_policy", 'expected "latest", "all" or a list of version numbers'),
        ("watch = 'x'", "watch", 'expected true or false, got "x"'),
    ],
)
def test_issue_in_entry_names_line_and_key(setting: str, key: str, message: str, tmp_path: Path) -> None:
    text = (
        f"[[models.onnx_models]]\nname = 'a'\npath = 'a'\n[[models.onnx_models]]\nname = 'b'\npath = 'b'\n{setting}\n"
    )
    (issue,) = issues_of(tmp_path, text)
    assert (issue.line, issue.key) == (7, f"models.onnx_models[1].{key}")
    assert message in issue.message


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "", " cuda", "cuda:1\n"])
def test_unknown_device_is_an_issue(device: str, tmp_path: Path) -> None:
    text = f"[[models.candle_models]]\nname = 'a'\npath = 'a'\ndevice = '''{device}'''\n"
    (issue,) = issues_of(tmp_path, text)
    assert (issue.line, issue.key) == (4, "models.candle_models[0].device")
    assert 'expected "auto", "cuda", "cuda:1"' in issue.message


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b/c", "é", "a\\n", "a" * 129])
def test_name_unfit_for_url_is_an_issue(name: str, tmp_path: Path) -> None:
    (issue,) = issues_of(tmp_path, f'[[models.onnx_models]]\nname = "{name}"\npath = "a"')
    assert (issue.line, issue.key, issue.kind) == (2, "models.onnx_models[0].name", "invalid")


def test_missing_key_reports_line_of_header(tmp_path: Path) -> None:
    issues = issues_of(tmp_path, "\n[[models.onnx_models]]\nname = 'a'\n\n[[models.candle_models]]\n[models.x]")
    assert [(issue.line, issue.key, issue.kind) for issue in issues] == [
        (2, "models.onnx_models[0].path", "missing"),
        (5, "models.candle_models[0].name", "missing"),
        (5, "models.candle_models[0].path", "missing"),
        (6, "models.x", "unknown_key"),
    ]
    assert issues[0].message == "expected a value, got none; every model needs this key"


def test_alias_of_other_model_is_duplicate(tmp_path: Path) -> None:
    text = """[[models.onnx_models]]
name = "m"
path = "a"
aliases = ["x", "y"]
[[models.torch_models]]
name = "y"
path = "b"
aliases = ["m"]
[[pipelines]]
name = "p"
aliases = ["x"]
inputs = ["text"]
outputs = { y = "cut" }
steps = [{ name = "cut", builtin = "chunk", inputs = { text = "text" } }]
"""
    issues = issues_of(tmp_path, text)
    assert [(issue.line, issue.key, issue.kind) for issue in issues] == [
        (6, "models.torch_models[0].name", "duplicate"),
        (8, "models.torch_models[0].aliases[0]", "duplicate"),
        (11, "pipelines[0].aliases[0]", "duplicate"),
    ]
    assert 'got "y", an alias of models.onnx_models[0] (line 4)' in issues[0].message
    assert 'got "m", the name of models.onnx_models[0] (line 2)' in issues[1].message


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ('["m"]', 'expected aliases that differ from each other and from the name, got a list; remove one "m"'),
        ('["x", "x"]', 'expected aliases that differ from each other and from the name, got a list; remove one "x"'),
        ('["a/../b"]', "expected a name or org/name of 1 to 128 letters"),
        ('"x"', "expected a list"),
        (str([f"x{number}" for number in range(65)]), "expected at most 64 aliases"),
    ],
)
def test_invalid_aliases_are_refused(tmp_path: Path, aliases: str, message: str) -> None:
    (issue,) = issues_of(tmp_path, f'[[models.onnx_models]]\nname = "m"\npath = "a"\naliases = {aliases}\n')
    assert issue.key.startswith("models.onnx_models[0].aliases")
    assert message in issue.message


def test_duplicate_name_reports_both_places(tmp_path: Path) -> None:
    text = "".join(
        f"[[models.{table}]]\nname = 'm'\npath = 'a'\n" for table in ("candle_models", "onnx_models", "torch_models")
    )
    issues = issues_of(tmp_path, text + "nonsense = 1")
    assert [(issue.line, issue.key, issue.kind) for issue in issues] == [
        (5, "models.onnx_models[0].name", "duplicate"),
        (8, "models.torch_models[0].name", "duplicate"),
        (10, "models.torch_models[0].nonsense", "unknown_key"),
    ]
    assert 'expected a unique name, got "m", the name of models.candle_models[0] (line 2)' in issues[0].message


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[server]\nport = 1\nport = 2", 3, "expected each key and table once"),
        ("[server]\n[server]", 2, "expected each key and table once"),
        ("[server]\nport =\n", 2, "expected a value"),
        ("[server]\nhost = localhost\n", 2, "write text in quotes"),
        ("[server\nport = 1", 1, "invalid TOML: "),
        ("x = '''", 1, "invalid TOML: "),
        ("x = " + "[" * 5000, None, "invalid TOML: "),
        ("x = " + "9" * 5000, None, "invalid TOML: "),
    ],
)
def test_invalid_toml_is_one_issue_with_line(text: str, line: int | None, message: str, tmp_path: Path) -> None:
    (issue,) = issues_of(tmp_path, text)
    assert (issue.line, issue.key, issue.kind) == (line, "", "syntax")
    assert message in issue.message


def test_unreadable_file_is_one_issue(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "latin.toml").write_bytes("# ok\n# é".encode("latin-1"))
    (tmp_path / "huge.toml").write_bytes(b"#" * (4 * 1024**2 + 1))
    expected = {
        "missing.toml": "no such file",
        "": "expected a file, got a folder",
        "loop": "cannot be read: ",
        "latin.toml": "expected UTF-8 text, got another byte on line 2",
        "huge.toml": "got more than 4 MiB",
        "a\0b": "cannot be read: ",
        "latin.toml/x": "cannot be read: ",
        "loop/x": "cannot be read: ",
    }
    for name, message in expected.items():
        with pytest.raises(ConfigError) as refusal:
            load_settings(tmp_path / name, {})
        (issue,) = refusal.value.issues
        assert (issue.kind, issue.line) == ("unreadable", None)
        assert message in issue.message
        assert "\0" in name or check_file(tmp_path / name, {}) == (issue,)
    if os.geteuid() != 0:
        (tmp_path / "huge.toml").chmod(0)
        assert "ermission denied" in check_file(tmp_path / "huge.toml", {})[0].message


def test_environment_issues_follow_file_issues(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[server]\nprt = 1\n[cache]\nx = 1", encoding="utf-8")
    issues = check_file(tmp_path / "config.toml", {"ROUNDHOUSE_SERVER__PORT": "x", "ROUNDHOUSE_X": ""})
    assert [issue.line for issue in issues] == [2, 4, None, None]


def test_check_file_reports_missing_paths(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    text = """
    [models]
    roots = [".", "./model.onnx", "./nowhere"]
    cache_dir = "./model.onnx"
    [[models.onnx_models]]
    name = "there"
    path = "model.onnx"
    [[models.onnx_models]]
    name = "not there"
    path = "./bert.onnx"
    [[models.torch_models]]
    name = "file"
    path = "./model.onnx"
    [[models.candle_models]]
    name = "far"
    path = "./model.onnx/x"
    [[models.candle_models]]
    name = "odd"
    path = "a\\u0000b"
    """
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    issues = check_file(tmp_path / "config.toml", {})
    assert [(issue.line, issue.key, issue.kind) for issue in issues] == [
        (3, "models.roots[1]", "invalid"),
        (3, "models.roots[2]", "not_found"),
        (4, "models.cache_dir", "invalid"),
        (9, "models.onnx_models[1].name", "invalid"),
        (10, "models.onnx_models[1].path", "not_found"),
        (13, "models.torch_models[0].path", "invalid"),
        (16, "models.candle_models[0].path", "not_found"),
        (19, "models.candle_models[1].path", "invalid"),
    ]
    assert f"expected a file or folder, got {tmp_path}/bert.onnx (no such file or directory)" in issues[4].message


def test_check_file_accepts_valid_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[models]\nroots = ['.']\ncache_dir = './made/later'", encoding="utf-8")
    assert check_file(tmp_path / "config.toml", {"PATH": "/bin"}) == ()


def test_issue_prints_any_value_on_one_line() -> None:
    issue = ConfigIssue("config.toml", None, "", "got " + format_value("\ud800"), "invalid")
    assert str(issue).encode() == b'config.toml: got "\\ud800"'
    assert format_value("x" * 1000) == '"' + "x" * 60 + '…"'
    assert format_value("\n\x9b\u2028é") == '"\\n\\x9b\\u2028é"'
    values: list[object] = [None, {}, [1], 1.5]
    assert [format_value(value) for value in values] == ["null", "a table", "a list", "1.5"]
    assert describe_error({"type": "new_in_pydantic", "input": 1}) == "expected another kind of value, got 1"


@pytest.mark.parametrize(
    ("value", "message", "shown"),
    [
        (None, "expected a key, got none; set it", "expected a key, got none; set it"),
        (3, "expected a key; set it", "expected a key, got 3; set it"),
    ],
)
def test_message_says_once_what_was_given(value: object, message: str, shown: str) -> None:
    error = {"type": "value_error", "input": value, "ctx": {"error": ValueError(message)}}
    assert describe_error(error) == shown
