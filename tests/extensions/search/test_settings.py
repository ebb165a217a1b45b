"""The tables of collections: their values, and all of their faults at once."""

from pathlib import Path

import pytest

from app.config import ConfigError, check_file, load_settings
from extensions.ray.checks import check_for_ray
from extensions.search.collections.contract import Metric
from extensions.search.settings import entries_of

ENTRY = '[[collections]]\nname = "docs"\ndimensions = 4\n'


def load(folder: Path, text: str) -> list[str]:
    """Return the keys and messages of all errors."""
    (folder / "config.toml").write_text(text)
    try:
        load_settings(folder / "config.toml", {})
    except ConfigError as error:
        return [f"{issue.key}: {issue.message}" for issue in error.issues]
    return []


def test_defaults_and_folder_of_collection(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(ENTRY + '[[collections]]\nname = "b"\ndimensions = 2\npath = "./other"\n')
    loaded = load_settings(tmp_path / "config.toml", {})
    first, second = entries_of(loaded.settings)
    settings = first.at(loaded.resolve(first.folder))
    assert settings.folder == tmp_path / "collections" / "docs"
    assert (settings.dimensions, settings.metric, settings.index_rows) == (4, Metric.COSINE, 200_000)
    assert loaded.resolve(second.folder) == tmp_path / "other"


def test_index_rows_zero_means_never(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(ENTRY + "index_rows = 0\nmax_rows = 9\n")
    (entry,) = entries_of(load_settings(tmp_path / "config.toml", {}).settings)
    settings = entry.at(tmp_path)
    assert (settings.index_rows, settings.max_rows) == (None, 9)


def test_environment_sets_key_of_collection(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(ENTRY)
    loaded = load_settings(tmp_path / "config.toml", {"ROUNDHOUSE_COLLECTIONS__0__THREADS": "3"})
    assert entries_of(loaded.settings)[0].threads == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[collections]]\nname = "a"\n', "collections[0].dimensions: expected a value, got none"),
        ('[[collections]]\nname = "a/b"\ndimensions = 1\n', "collections[0].name: "),
        (ENTRY + ENTRY, 'collections[1].name: expected a name of its own, got "docs" twice'),
        (ENTRY + 'metric = "l2"\n', "collections[0].metric: "),
        (ENTRY + "index_recall = 0.0\n", "collections[0].index_recall: "),
        (ENTRY + "dimension = 4\n", 'collections[0].dimension: unknown key; did you mean "dimensions"?'),
    ],
)
def test_wrong_key_is_named(text: str, message: str, tmp_path: Path) -> None:
    issues = load(tmp_path, text)
    assert any(issue.startswith(message) for issue in issues), issues


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    text = '[[models.torch_models]]\nname = "minilm"\npath = "a"\n' + ENTRY + 'model = "minilim"\npath = "x"\n'
    text += '[[collections]]\nname = "docs"\ndimensions = 0\npath = "x"\n'
    (tmp_path / "config.toml").write_text(text)
    issues = {issue.key: issue.message for issue in check_file(tmp_path / "config.toml", {})}
    assert 'did you mean "minilm"?' in issues["collections[0].model"]
    assert {"collections[1].name", "collections[1].path", "collections[1].dimensions"} <= issues.keys()


def test_model_of_collection_may_be_alias(tmp_path: Path) -> None:
    text = '[[models.torch_models]]\nname = "org/minilm"\naliases = ["short"]\npath = "a"\n'
    for name in ("org/minilm", "short"):
        file = tmp_path / "config.toml"
        file.write_text(f'{text}{ENTRY}model = "{name}"\n', encoding="utf-8")
        assert entries_of(load_settings(file, {}).settings)[0].model == name


def test_deployment_on_ray_refuses_collections(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(ENTRY)
    with pytest.raises(ConfigError) as caught:
        check_for_ray(load_settings(tmp_path / "config.toml", {}))
    (issue,) = caught.value.issues
    assert issue.key == "collections"
    assert issue.message.endswith("beside Ray, and send it the vectors of POST /v1/embeddings")
