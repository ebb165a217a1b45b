"""The model of a replica of Ray Serve, and its settings. They travel as a pickle of Ray."""

from dataclasses import dataclass

from frameworks.engine.contract import EngineSettings
from frameworks.engine.registries import RegistrySettings
from frameworks.runtime import ModelEntry
from frameworks.sources.contract import OpenRemote
from frameworks.sources.remotes import open_remote


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """A model and its settings. Paths are absolute, and exist on every node that may run a replica; of a model with an
    address each node has the files in its own cache. `max_download_bytes`: of one version. `open_remote`: a function of
    a module that every node has.

    `versions`: name and path of each version that is loaded before the replica serves; empty for a model with
    `load = "lazy"`. Other versions are loaded when an ingress asks for them.
    """

    framework: str
    entry: ModelEntry
    engine: EngineSettings
    settings: RegistrySettings
    versions: tuple[tuple[str, str], ...] = ()
    log_level: str = "info"
    max_download_bytes: int = 20 * 1024**3
    open_remote: OpenRemote = open_remote

    @property
    def name(self) -> str:
        """Name of the model, for logs."""
        return self.engine.name

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU that the replica has may be used."""
        return self.settings.performance.enable_gpu


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The models that share a replica, and their settings. `members`: with no versions, as the models are lazy.

    `max_model_memory`: bytes of all loaded models on each device of one replica. `min_residency_s`: a model is not
    evicted earlier for a request.
    """

    name: str
    members: tuple[ReplicaConfig, ...]
    settings: RegistrySettings
    max_model_memory: int
    min_residency_s: float
    log_level: str = "info"

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU that the replica has may be used."""
        return self.settings.performance.enable_gpu
