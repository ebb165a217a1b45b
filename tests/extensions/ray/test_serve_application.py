"""The application of a config file: deployments, checks, settings of the ingress."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.config import ConfigError, LoadedSettings, load_settings
from app.extension import open_remote
from extensions.ray.checks import check_for_ray, for_ingress
from frameworks.core.settings.values import ReplicaRange

CONFIG = """
[server]
port = 18080
[[models.onnx_models]]
name = "a"
path = "a.onnx"
replicas = { min = 0, max = 3 }
num_cpus = 0.5
[[models.torch_models]]
name = "b"
path = "b"
device = "cuda"
replicas = 2
"""


def loaded_from(folder: Path, text: str = CONFIG) -> LoadedSettings:
    (folder / "config.toml").write_text(text, encoding="utf-8")
    return load_settings(folder / "config.toml", {})


def test_application_is_function_of_package(tmp_path: Path) -> None:
    """As `serve run extensions.ray:application config=…` finds it."""
    import extensions.ray
    import extensions.ray.serve_application

    loaded_from(tmp_path)
    built: Any = extensions.ray.application({"config": str(tmp_path / "config.toml")})
    assert built._bound_deployment.name == "Ingress"
    with pytest.raises(ConfigError, match=r"expected the argument config, got file"):
        extensions.ray.application({"file": "config.toml"})


def test_replicas_read_as_number_or_range(tmp_path: Path) -> None:
    models = loaded_from(tmp_path).settings.models
    assert models.onnx_models[0].replicas == ReplicaRange(0, 3)
    assert models.torch_models[0].replicas == 2


@pytest.mark.parametrize("value", ["0", "true", "1025", "{ min = 2, max = 1 }", "{ min = 0, max = 0 }", "{ min = 1 }"])
def test_wrong_replicas_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match="replicas: expected an integer"):
        loaded_from(tmp_path, f'[[models.onnx_models]]\nname = "a"\npath = "a.onnx"\nreplicas = {value}\n')


def test_ingress_settings_hold_no_device(tmp_path: Path) -> None:
    loaded = loaded_from(tmp_path)
    check_for_ray(loaded)
    models = for_ingress(loaded).settings.models
    entries = (*models.onnx_models, *models.torch_models)
    assert {(entry.isolation, entry.device) for entry in entries} == {("process", "cpu")}


def test_settings_without_meaning_refused(tmp_path: Path) -> None:
    text = CONFIG.replace("18080", "0\nworkers = 2").replace('"cuda"', '["cuda:0", "cuda:1"]')
    with pytest.raises(ConfigError) as refused:
        check_for_ray(loaded_from(tmp_path, text + 'isolation = "process"\nmax_batch_seconds = 1.0\n'))
    with pytest.raises(ConfigError, match="no model with a state on Ray"):
        check_for_ray(loaded_from(tmp_path, '[[models.onnx_models]]\nname = "a"\npath = "a.onnx"\nstate = "auto"\n'))
    for key in ("server.port", "server.workers", "torch_models[0].device", "torch_models[0].max_batch_seconds"):
        assert key in str(refused.value)


def test_several_ranks_are_refused(tmp_path: Path) -> None:
    text = '[[models.torch_models]]\nname = "a"\npath = "a"\ntensor_parallel = 2\n'
    with pytest.raises(ConfigError, match=r"torch_models\[0\]\.tensor_parallel: expected 1 on Ray, got 2; remove it"):
        check_for_ray(loaded_from(tmp_path, text))


def test_application_binds_deployment_per_model(tmp_path: Path) -> None:
    from extensions.ray.ingress.ingress import NAME
    from extensions.ray.serve_application import build_application

    application: Any = build_application(loaded_from(tmp_path), "k" * 32)
    deployment = application._bound_deployment
    assert deployment.name == NAME
    config, models, groups = deployment.init_args
    assert not groups
    assert "k" * 32 not in repr(config)
    assert {name: each._bound_deployment.name for name, each in models.items()} == {"a": "model-a", "b": "model-b"}
    assert models["b"]._bound_deployment.num_replicas == 2
    assert pickle.loads(pickle.dumps(models["b"]._bound_deployment.init_args[0])).open_remote is open_remote


def test_pipelines_have_no_deployment(tmp_path: Path) -> None:
    """Each ingress runs their steps."""
    from extensions.ray.serve_application import build_application

    pipeline = """
[[pipelines]]
name = "p"
inputs = ["x"]
outputs = { y = "one" }
steps = [{ name = "one", model = "a", inputs = { x = "x" } }]
"""
    application: Any = build_application(loaded_from(tmp_path, CONFIG + pipeline), "")
    config, models, _ = application._bound_deployment.init_args
    assert set(models) == {"a", "b"}
    assert [each.name for each in config.loaded.settings.table("pipelines", ())] == ["p"]


def test_application_binds_deployment_per_group(tmp_path: Path) -> None:
    from extensions.ray.serve_application import build_application

    member = 'load = "lazy"\nreplica_group = "small"\n'
    text = f"""
[[models.onnx_models]]
name = "a"
path = "a.onnx"
{member}
[[models.onnx_models]]
name = "b"
path = "b.onnx"
{member}pinned = true
[[models.onnx_models]]
name = "c"
path = "c.onnx"
[[ray.groups]]
name = "small"
replicas = {{ min = 0, max = 3 }}
num_cpus = 0.5
max_model_memory = "1GiB"
[scheduling]
min_residency_s = 4.0
"""
    application: Any = build_application(loaded_from(tmp_path, text), "")
    _, models, groups = application._bound_deployment.init_args
    assert {name: each._bound_deployment.name for name, each in models.items()} == {"c": "model-c"}
    group = groups["small"]._bound_deployment
    assert (group.name, group.ray_actor_options["num_cpus"]) == ("group-small", 0.5)
    (config,) = group.init_args
    assert [(member.name, member.entry.pinned, member.versions) for member in config.members] == [
        ("a", False, ()),
        ("b", True, ()),
    ]
    assert (config.max_model_memory, config.min_residency_s) == (1024**3, 4.0)


def test_stopped_ingress_waits_for_running_one() -> None:
    from extensions.ray.ingress.ingress import has_successor

    def status(state: str, replicas: dict[str, int]) -> Any:
        deployment = SimpleNamespace(replica_states=replicas)
        application = SimpleNamespace(status=state, deployments={"Ingress": deployment})
        return SimpleNamespace(applications={"app": application})

    assert not has_successor(status("DEPLOYING", {"STARTING": 1}), "app", "Ingress")
    assert has_successor(status("DEPLOYING", {"STARTING": 1, "RUNNING": 1}), "app", "Ingress")
    assert has_successor(status("DELETING", {}), "app", "Ingress")
    assert has_successor(SimpleNamespace(applications={}), "app", "Ingress")
