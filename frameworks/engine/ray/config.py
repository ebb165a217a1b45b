"""The model of a replica of Ray Serve, and its settings. They travel as a pickle of Ray."""

from dataclasses import dataclass

from frameworks.engine.contract import EngineSettings
from frameworks.engine.registries import RegistrySettings
from frameworks.runtime import ModelEntry


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """A model and its settings. Paths are absolute, and exist on every node that may run a replica; of a model with an
    address each node has the files in its own cache. `max_download_bytes`: of one version.

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

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU that the replica has may be used."""
        return self.settings.performance.enable_gpu
