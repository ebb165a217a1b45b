"""Check settings for a deployment on Ray, and change them to those of its ingress."""

from collections.abc import Iterator
from dataclasses import replace

from app.config import ConfigError, ConfigIssue, LoadedSettings
from app.config.tables import extension_tables
from frameworks.core.settings.entries import ModelEntry, OnnxModelEntry, TorchModelEntry
from frameworks.core.settings.entry_values import names_several_devices

_OF_PROCESSES = {"max_batch_seconds": None, "max_process_memory": None, "niceness": None, "cpus": None}


def check_for_ray(loaded: LoadedSettings) -> None:
    """Raise ConfigError with all settings that a deployment on Ray cannot have."""
    issues = list(_issues(loaded))
    if issues:
        raise ConfigError(issues)


def _issues(loaded: LoadedSettings) -> Iterator[ConfigIssue]:
    server = loaded.settings.server
    if server.port == 0:
        yield _issue("server.port", "expected a port that is free on each node, got 0; set one")
    if server.workers != 1:
        yield _issue("server.workers", f"expected 1 on Ray, got {server.workers}; set ray.ingress_replicas")
    for each in extension_tables():
        if each.refused_on_ray and loaded.settings.table(each.name, each.default):
            yield _issue(each.name, each.refused_on_ray)
    for table, entries in model_tables(loaded).items():
        for index, entry in enumerate(entries):
            yield from _issues_of_model(f"models.{table}[{index}]", entry)


def _issues_of_model(location: str, entry: ModelEntry) -> Iterator[ConfigIssue]:
    if names_several_devices(entry.device):
        yield _issue(f"{location}.device", f"expected one device on Ray, got {entry.device!r}; set replicas")
    if entry.num_ranks > 1:
        yield _issue(f"{location}.tensor_parallel", f"expected 1 on Ray, got {entry.num_ranks}; remove it")
    if isinstance(entry, OnnxModelEntry) and entry.state is not None:
        message = "expected no model with a state on Ray, whose replicas do not share sequences; serve it elsewhere"
        yield _issue(f"{location}.state", message)
    for key in _OF_PROCESSES:
        if getattr(entry, key) is not None:
            message = "expected no value on Ray, where each replica is a process; remove it"
            yield _issue(f"{location}.{key}", message)


def model_tables(loaded: LoadedSettings) -> dict[str, tuple[OnnxModelEntry, ...] | tuple[TorchModelEntry, ...]]:
    """Return the entries of the models by table."""
    models = loaded.settings.models
    return {"onnx_models": models.onnx_models, "torch_models": models.torch_models}


def for_ingress(loaded: LoadedSettings) -> LoadedSettings:
    """Return the settings of the ingress: each model runs elsewhere, and takes no device of the ingress."""
    models = loaded.settings.models
    changed = models.model_copy(
        update={table: tuple(_elsewhere(entry) for entry in entries) for table, entries in model_tables(loaded).items()}
    )
    # Of models that callers register: they have no deployment, and are refused.
    performance = loaded.settings.performance.model_copy(update={"isolation": "process"})
    update = {"models": changed, "performance": performance}
    return replace(loaded, settings=loaded.settings.model_copy(update=update))


def _elsewhere(entry: ModelEntry) -> ModelEntry:
    return entry.model_copy(update={"isolation": "process", "device": "cpu"})


def _issue(key: str, message: str) -> ConfigIssue:
    return ConfigIssue("config", None, key, message, "invalid")
