"""Draft models in config.toml: a name or a path, and the checks of `roundhouse check`."""

from pathlib import Path

import pytest

from app.config import ConfigError, LoadedSettings, check_file, load_settings
from app.server.manager import build_manager
from frameworks.core.devices import DeviceManager
from frameworks.core.settings.entries import TorchModelEntry
from memory.settings import MemorySettings
from memory.tensor_pool import TensorPool
from tests.support.fake_probe import FakeProbe

SMALL = '[[models.torch_models]]\nname = "small"\npath = "./small-lm"\n'


def model(*lines: str) -> str:
    return "\n".join(('[[models.torch_models]]\nname = "lm"\npath = "./lm"', *lines, ""))


def loaded_from(folder: Path, content: str) -> LoadedSettings:
    file = folder / "config.toml"
    file.write_text(content)
    for name in ("lm", "small-lm", "draft"):
        (folder / name).mkdir(exist_ok=True)
    return load_settings(file, {})


def draft_of(loaded: LoadedSettings) -> Path | None:
    """Return the draft model of `lm` as the manager registers it."""
    manager = build_manager(loaded, DeviceManager(FakeProbe()), TensorPool(MemorySettings()))
    entry = manager.slot("lm").entry
    assert isinstance(entry, TorchModelEntry)
    return entry.draft_model


@pytest.mark.parametrize("draft", ["org/small", "short"])
def test_draft_may_be_alias_or_have_slash(draft: str, tmp_path: Path) -> None:
    other = SMALL.replace('"small"', '"org/small"') + 'aliases = ["short"]\n'
    loaded = loaded_from(tmp_path, other + model(f'draft_model = "{draft}"'))
    assert draft_of(loaded) == tmp_path / "small-lm"
    assert check_file(tmp_path / "config.toml", {}) == ()


@pytest.mark.parametrize(
    ("draft", "path"),
    [("small", "small-lm"), ("./draft", "draft"), ("draft", "draft"), ("/elsewhere", "/elsewhere")],
    ids=["name", "path", "folder", "absolute"],
)
def test_draft_model_is_name_or_path(tmp_path: Path, draft: str, path: str) -> None:
    loaded = loaded_from(tmp_path, model(f'draft_model = "{draft}"') + SMALL)
    assert draft_of(loaded) == tmp_path / path


def test_default_is_no_draft_model(tmp_path: Path) -> None:
    assert draft_of(loaded_from(tmp_path, model() + SMALL)) is None


def test_lookup_beside_draft_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded_from(tmp_path, model('speculation = "lookup"', 'draft_model = "small"') + SMALL)
    [issue] = refused.value.issues
    assert issue.key == "models.torch_models[0].draft_model"
    assert 'expected no draft model beside speculation = "lookup", got "small"; remove one' in issue.message


def test_check_reports_missing_draft_models(tmp_path: Path) -> None:
    key = "models.torch_models[0].draft_model"
    loaded_from(tmp_path, model('draft_model = "small"') + SMALL)
    file = tmp_path / "config.toml"
    assert key not in {issue.key for issue in check_file(file, {})}
    (tmp_path / "file").touch()
    for draft, words in (("smal", "no such file"), ("./file", "expected a folder or a .gguf file")):
        file.write_text(model(f'draft_model = "{draft}"') + SMALL)
        issues = {issue.key: issue.message for issue in check_file(file, {})}
        assert words in issues[key]
