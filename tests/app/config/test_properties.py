"""Any file, environment or body loads, or raises ConfigError; never another exception."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.config import ConfigError, LoadedSettings, Settings, check_file, load_settings, parse_model_entry
from app.config.environment import setting_names
from frameworks.core.settings.entries import OnnxModelEntry, TorchModelEntry

NAMES = sorted({str(step) for name in setting_names(Settings) for step in name if isinstance(step, str)})
VARIABLES = sorted("ROUNDHOUSE_" + "__".join(map(str, name)).upper() for name in setting_names(Settings))

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["a", "2GiB", "CUDA", "cuda:1", "f16", "mixed", "lazy", "all", "./models"]),
)
names = st.one_of(st.sampled_from(NAMES), st.text(max_size=10))
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=5)),
    max_leaves=20,
)
tables = st.dictionaries(names, junk, max_size=5)
entries = st.fixed_dictionaries({"name": st.sampled_from("abc"), "path": st.just("p")}, optional={"quantized": junk})


def loads_or_refuses(load: Callable[[], object], wanted: Any) -> None:
    """Call `load`; any exception but ConfigError fails the test."""
    refusal = None
    try:
        loaded = load()
    except ConfigError as error:
        refusal = error
    if refusal is None:
        assert isinstance(loaded, wanted)
        return
    assert refusal.issues
    assert str(refusal).encode()
    assert all(issue.message and len(str(issue).splitlines()) == 1 for issue in refusal.issues)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(list(Settings.model_fields)), st.one_of(tables, junk)))
def test_any_document_loads_or_raises_config_error(document: dict[str, Any]) -> None:
    loads_or_refuses(lambda: load_settings(None, {}, document), LoadedSettings)


@settings(deadline=None)
@given(st.fixed_dictionaries({}, optional={name: st.lists(entries, max_size=3) for name in NAMES if "_models" in name}))
def test_any_models_load_or_raise_config_error(models: dict[str, Any]) -> None:
    environ = {"ROUNDHOUSE_MODELS": json.dumps(models)}
    loads_or_refuses(lambda: load_settings(None, environ), LoadedSettings)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.one_of(st.sampled_from(VARIABLES), st.from_regex(r"\Aroundhouse_[A-Z0-9_]{0,20}\Z")),
        st.one_of(st.text(), st.text(st.characters(), max_size=5), junk.map(json.dumps)),
        max_size=5,
    )
)
def test_any_environment_loads_or_raises_config_error(environ: dict[str, str]) -> None:
    loads_or_refuses(lambda: load_settings(None, environ), LoadedSettings)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "config.toml"


@settings(deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=200).map(str.encode),
        st.lists(st.sampled_from([*NAMES, "=", "[", "]", "[[", "]]", ".", '"', "'", "{", "}", "\n", "1", "true", ","]))
        .map("".join)
        .map(str.encode),
    )
)
def test_any_file_loads_or_raises_config_error(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    loads_or_refuses(lambda: load_settings(file, {}), LoadedSettings)
    assert isinstance(check_file(file, {}), tuple)


@settings(deadline=None)
@given(st.one_of(st.sampled_from(["onnx", "pytorch"]), junk), tables)
def test_any_model_body_parses_or_raises_config_error(framework: object, body: dict[str, Any]) -> None:
    loads_or_refuses(lambda: parse_model_entry(framework, body), OnnxModelEntry | TorchModelEntry)
