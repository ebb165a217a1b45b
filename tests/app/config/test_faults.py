"""Everything that can be wrong with a file: named in plain words, all at once, each on its line."""

import os
import re
from pathlib import Path

import pytest

from app.config import ConfigError, Fault, check_file, load_settings
from app.config.faults import describe_fault, shown


def faults_of(folder: Path, text: str | bytes) -> tuple[Fault, ...]:
    file = folder / "config.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as refusal:
        load_settings(file, {})
    assert str(refusal.value) == "\n".join(map(str, refusal.value.faults))
    return refusal.value.faults


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        ("\n[serve]", 2, "serve", 'unknown key; did you mean "server"?'),
        ("port = 1", 1, "port", "unknown key here; it belongs in [server]"),
        ("[server]\nprt = 1", 2, "server.prt", 'unknown key; did you mean "port"?'),
        ("[cache]\nzz = 1", 2, "cache.zz", "unknown key; known here are max_bytes, ttl_s"),
        ('[server]\n"a b".c = 1', 2, 'server."a b"', "unknown key; known here are"),
        ('[server]\n"\\n" = 1', 2, 'server."\\n"', "unknown key; known here are"),
        ("[server]\nmodels = 1", 2, "server.models", "unknown key here; it belongs at the top of the file"),
        ("[server]\n\nport = '8080'", 3, "server.port", 'wants a whole number, but "8080" came; take the quotes away'),
        ("[server]\nport = 'x'", 2, "server.port", 'wants a whole number, but "x" came'),
        ("[server]\nport = true", 2, "server.port", "wants a whole number, but true came"),
        ("[server]\nport = 80.0", 2, "server.port", "wants a whole number, but 80.0 came"),
        ("[server]\nport = 65536", 2, "server.port", "wants at most 65535, but 65536 came"),
        ("[server]\nport = -1", 2, "server.port", "wants at least 0, but -1 came"),
        (f"[server]\nport = 0x{'f' * 5000}", 2, "server.port", "wants at most 65535, but a very large number came"),
        ("[server]\nhost = 3", 2, "server.host", "wants text in quotes, but 3 came"),
        ("[server]\nhost = ''", 2, "server.host", 'wants at least 1 character, but "" came'),
        ("[server]\ndrain_timeout_s = nan", 2, "server.drain_timeout_s", "wants a number, but nan came"),
        ("[server]\ndrain_timeout_s = '3.5'", 2, "server.drain_timeout_s", "take the quotes away"),
        ("[memory]\ngc_threshold = 0", 2, "memory.gc_threshold", "wants more than 0, but 0 came"),
        ("[memory]\ngc_threshold = 80", 2, "memory.gc_threshold", "wants at most 1, but 80 came"),
        ("[memory]\nmax_allocated = '2 parsecs'", 2, "memory.max_allocated", 'wants a size: .* but "2 parsecs" came'),
        ("[memory]\nmax_allocated = 0", 2, "memory.max_allocated", "wants at least 1, but 0 came"),
        (
            "[performance]\nenable_gpu = 'true'",
            2,
            "performance.enable_gpu",
            "wants true or false, .* take the quotes away",
        ),
        ("[performance]\nenable_gpu = 1", 2, "performance.enable_gpu", "wants true or false, but 1 came"),
        ("[logging]\nlevel = 'warn'", 2, "logging.level", 'wants one of .*"warn" came; did you mean "warning"?'),
        ("[logging]\nlevel = 1979-05-27", 2, "logging.level", "wants one of .*, but 1979-05-27 came"),
        ("server = 3", 1, "server", "wants a table of keys and values, but 3 came"),
        ("[[server]]", 1, "server", "wants a table of keys and values, but a list came"),
        ("models = 3", 1, "models", "wants a table of keys and values, but 3 came"),
        ("[models]\nroots = './models'", 2, "models.roots", r'wants a list in [ ], but "./models" came'),
        (
            "[models]\nroots = [\n'a',\n'']",
            4,
            "models.roots[1]",
            'wants the path of a file or folder, in quotes, but "" came',
        ),
        ("[models.onnx_models]", 1, "models.onnx_models", "wants a list in [ ], but a table came"),
        ("[models.candle_models]", 1, "models.candle_models", "wants a list in [ ], but a table came"),
        ("[models]\nonnx_models = [3]", 2, "models.onnx_models[0]", "wants a table of keys and values, but 3 came"),
    ],
)
def test_a_fault_is_named_on_its_line(text: str, line: int, key: str, message: str, tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, text)
    assert (fault.line, fault.key) == (line, key)
    assert re.search(re.escape(message).replace(r"\.\*", ".*"), fault.message), fault.message
    assert fault.kind == ("unknown_key" if "unknown key" in message else "invalid")
    assert str(fault) == f"{tmp_path}/config.toml:{line}: {key}: {fault.message}"


@pytest.mark.parametrize(
    ("setting", "key", "message"),
    [
        ("quantzed = true", "quantzed", 'unknown key; did you mean "quantized"?'),
        ("device = 'cpu'", "device", "unknown key here; it belongs in [[models.torch_models]]"),
        ("quantized = 'yes'", "quantized", 'wants true, false or "mixed", but "yes" came'),
        ("input_shape = [1, -1]", "input_shape[1]", "wants at least 1, but -1 came"),
        ("input_shape = 3", "input_shape", "wants a list in [ ], but 3 came"),
        ("execution_providers = ['CUDAA']", "execution_providers[0]", '"CUDAA" came; did you mean "CUDA"?'),
        (
            "execution_providers = ['TPU']",
            "execution_providers[0]",
            'wants one of "TensorRT", "CUDA", "ROCm", "CoreML"',
        ),
        ("execution_providers = []", "execution_providers", 'wants at least one name, like ["CPU"]'),
        ("execution_providers = [1]", "execution_providers[0]", "but 1 came"),
        ("max_batch_size = 0", "max_batch_size", "wants at least 1, but 0 came"),
        ("min_cosine = 1.5", "min_cosine", "wants at most 1, but 1.5 came"),
        ("load = 'never'", "load", 'wants one of "startup", "lazy", but "never" came'),
        (
            "version_policy = 3",
            "version_policy",
            'wants "latest", "all" or a list of version numbers, like [1, 3], but 3',
        ),
        ("version_policy = [0]", "version_policy", 'wants "latest", "all" or a list of version numbers, like [1, 3]'),
        ("watch = 'x'", "watch", 'wants true or false, but "x" came'),
    ],
)
def test_a_fault_in_an_entry_is_named_on_its_line(setting: str, key: str, message: str, tmp_path: Path) -> None:
    text = (
        f"[[models.onnx_models]]\nname = 'a'\npath = 'a'\n[[models.onnx_models]]\nname = 'b'\npath = 'b'\n{setting}\n"
    )
    (fault,) = faults_of(tmp_path, text)
    assert (fault.line, fault.key) == (7, f"models.onnx_models[1].{key}")
    assert message in fault.message


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "", " cuda", "cuda:1\n"])
def test_a_device_that_cannot_be_is_refused(device: str, tmp_path: Path) -> None:
    text = f"[[models.candle_models]]\nname = 'a'\npath = 'a'\ndevice = '''{device}'''\n"
    (fault,) = faults_of(tmp_path, text)
    assert (fault.line, fault.key) == (4, "models.candle_models[0].device")
    assert 'wants one of "auto", "cuda", "cuda:1"' in fault.message


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "é", "a\\n", "a" * 129])
def test_a_name_that_does_not_fit_a_url_is_refused(name: str, tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, f'[[models.onnx_models]]\nname = "{name}"\npath = "a"')
    assert (fault.line, fault.key, fault.kind) == (2, "models.onnx_models[0].name", "invalid")


def test_a_missing_key_is_named_on_its_tables_header(tmp_path: Path) -> None:
    faults = faults_of(tmp_path, "\n[[models.onnx_models]]\nname = 'a'\n\n[[models.candle_models]]\n[models.x]")
    assert [(fault.line, fault.key, fault.kind) for fault in faults] == [
        (2, "models.onnx_models[0].path", "missing"),
        (5, "models.candle_models[0].name", "missing"),
        (5, "models.candle_models[0].path", "missing"),
        (6, "models.x", "unknown_key"),
    ]
    assert faults[0].message == "is missing: every model needs one"


def test_a_name_that_is_taken_names_both_places_also_beside_other_faults(tmp_path: Path) -> None:
    text = "".join(
        f"[[models.{table}]]\nname = 'm'\npath = 'a'\n" for table in ("candle_models", "onnx_models", "torch_models")
    )
    faults = faults_of(tmp_path, text + "nonsense = 1")
    assert [(fault.line, fault.key, fault.kind) for fault in faults] == [
        (5, "models.onnx_models[0].name", "duplicate"),
        (8, "models.torch_models[0].name", "duplicate"),
        (10, "models.torch_models[0].nonsense", "unknown_key"),
    ]
    assert '"m" is already the name of models.candle_models[0] (line 2)' in faults[0].message


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[server]\nport = 1\nport = 2", 3, "already set further up"),
        ("[server]\n[server]", 2, "already set further up"),
        ("[server]\nport =\n", 2, "a value is missing or wrong here"),
        ("[server]\nhost = localhost\n", 2, "text wants quotes"),
        ("[server\nport = 1", 1, "not TOML: "),
        ("x = '''", 1, "not TOML: "),
        ("x = " + "[" * 5000, None, "cannot be read as TOML"),
        ("x = " + "9" * 5000, None, "cannot be read as TOML"),
    ],
)
def test_what_is_not_toml_is_one_fault_with_its_line(text: str, line: int | None, message: str, tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, text)
    assert (fault.line, fault.key, fault.kind) == (line, "", "syntax")
    assert message in fault.message


def test_a_file_that_cannot_be_read_is_one_fault(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "latin.toml").write_bytes("# ok\n# é".encode("latin-1"))
    (tmp_path / "huge.toml").write_bytes(b"#" * (4 * 1024**2 + 1))
    expected = {
        "missing.toml": "there is no such file",
        "": "is a folder",
        "loop": "cannot be read: ",
        "latin.toml": "is not UTF-8 text (a byte on line 2)",
        "huge.toml": "is larger than 4 MiB",
        "a\0b": "cannot be read: ",
        "latin.toml/x": "cannot be read: ",
        "loop/x": "cannot be read: ",
    }
    for name, message in expected.items():
        with pytest.raises(ConfigError) as refusal:
            load_settings(tmp_path / name, {})
        (fault,) = refusal.value.faults
        assert (fault.kind, fault.line) == ("unreadable", None)
        assert message in fault.message
        assert "\0" in name or check_file(tmp_path / name, {}) == (fault,)
    if os.geteuid() != 0:
        (tmp_path / "huge.toml").chmod(0)
        assert "ermission denied" in check_file(tmp_path / "huge.toml", {})[0].message


def test_faults_of_the_environment_come_after_those_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[server]\nprt = 1\n[cache]\nx = 1", encoding="utf-8")
    faults = check_file(tmp_path / "config.toml", {"ROUNDHOUSE_SERVER__PORT": "x", "ROUNDHOUSE_X": ""})
    assert [fault.line for fault in faults] == [2, 4, None, None]


def test_check_also_looks_whether_the_paths_are_there(tmp_path: Path) -> None:
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
    faults = check_file(tmp_path / "config.toml", {})
    assert [(fault.line, fault.key, fault.kind) for fault in faults] == [
        (3, "models.roots[1]", "invalid"),
        (3, "models.roots[2]", "not_found"),
        (4, "models.cache_dir", "invalid"),
        (9, "models.onnx_models[1].name", "invalid"),
        (10, "models.onnx_models[1].path", "not_found"),
        (13, "models.torch_models[0].path", "invalid"),
        (16, "models.candle_models[0].path", "not_found"),
        (19, "models.candle_models[1].path", "invalid"),
    ]
    assert f"nothing to read at {tmp_path}/bert.onnx (no such file or directory)" in faults[4].message


def test_check_finds_nothing_wrong_with_a_good_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[models]\nroots = ['.']\ncache_dir = './made/later'", encoding="utf-8")
    assert check_file(tmp_path / "config.toml", {"PATH": "/bin"}) == ()


def test_a_fault_can_be_printed_whatever_came() -> None:
    fault = Fault("config.toml", None, "", shown("\ud800") + " came", "invalid")
    assert str(fault).encode() == b'config.toml: "\\ud800" came'
    assert shown("x" * 1000) == '"' + "x" * 60 + '…"'
    assert shown("\n\x9b\u2028é") == '"\\n\\x9b\\u2028é"'
    values: list[object] = [None, {}, [1], 1.5]
    assert [shown(value) for value in values] == ["nothing (null)", "a table", "a list", "1.5"]
    assert describe_fault({"type": "new_in_pydantic", "input": 1}) == "wants another kind of value, but 1 came"
