"""`[[ray.groups]]` and the models that name one."""

from pathlib import Path

import pytest

from app.config import ConfigError, Settings, load_settings
from extensions.ray.settings import ray_settings
from frameworks.core.settings.values import ReplicaRange

MODEL = """
[[models.onnx_models]]
name = "a"
path = "a.onnx"
load = "lazy"
replica_group = "small"
"""
GROUP = """
[[ray.groups]]
name = "small"
max_model_memory = "1GiB"
"""


def settings_of(folder: Path, text: str) -> Settings:
    file = folder / "config.toml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file, {}).settings


def test_group_is_read_with_its_defaults(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, MODEL + GROUP)
    [group] = ray_settings(settings).groups
    assert (group.replicas, group.num_cpus, group.num_gpus, group.max_model_memory) == (1, 1.0, 0.0, 1024**3)
    assert settings.models.onnx_models[0].replica_group == group.name


def test_group_has_range_of_replicas(tmp_path: Path) -> None:
    [group] = ray_settings(settings_of(tmp_path, MODEL + GROUP + "replicas = { min = 0, max = 3 }\n")).groups
    assert group.replicas == ReplicaRange(0, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MODEL, r"replica_group: expected the name of one of \[\[ray.groups\]\], got \"small\"; add it there"),
        (MODEL.replace("small", "smal") + GROUP, 'replica_group: .* got "smal"; did you mean "small"'),
        (MODEL.replace("lazy", "startup") + GROUP, 'load: expected "lazy" beside replica_group, got "startup"'),
        (MODEL.replace('load = "lazy"\n', "") + GROUP, 'load: expected "lazy" beside replica_group, got "startup"'),
        (MODEL + "replicas = 2\n" + GROUP, "replicas: expected no value beside replica_group, got 2"),
        (MODEL + "num_cpus = 0.5\n" + GROUP, "num_cpus: expected no value beside replica_group, got 0.5"),
        (MODEL + "num_gpus = 1.0\n" + GROUP, "num_gpus: expected no value beside replica_group, got 1.0"),
        (MODEL + GROUP + GROUP, 'name: expected unique names of groups, got "small" twice'),
        (MODEL + GROUP + GROUP.replace("small", "other"), 'name: expected a model with replica_group = "other"'),
        (MODEL + GROUP.replace('max_model_memory = "1GiB"\n', ""), "max_model_memory"),
        (MODEL + GROUP + "replicas = 0\n", "replicas: expected an integer from 1"),
        (MODEL + GROUP + "memory = 1\n", "memory: unknown key"),
    ],
)
def test_wrong_group_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(tmp_path, text)
