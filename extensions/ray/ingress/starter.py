"""Serve versions by the replicas of a Ray cluster: the engine is here, the model is there."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from extensions.ray.ingress.group import ReplicaGroup
from extensions.ray.ingress.group_startup import Deployed, open_group
from frameworks.core.devices import Device, ModelNeeds
from frameworks.core.errors import InvalidModel
from frameworks.engine.process.link import Started
from frameworks.models.residency.residency import ModelResidency
from frameworks.models.versions.version import ModelVersion


class RayStarter:
    """Implement Starter. Owned by the event loop. Versions, shares and roll-backs stay with the manager of the ingress.

    The models of the manager have `isolation = "process"`, and the device `"cpu"`: they take no memory here.
    """

    loads_one_by_one = False

    def __init__(self, deployments: Mapping[str, Deployed]) -> None:
        """`deployments`: by the name of the model. Models that share replicas have the same one."""
        self._deployments = deployments
        self._on_evicted: Callable[[ModelVersion], None] = lambda _: None

    def attach(self, residency: ModelResidency) -> None:
        """Report evictions in replicas to the residency of the ingress."""
        self._on_evicted = residency.note_evicted
        shared = {
            id(each.loaded_versions): each.loaded_versions
            for each in self._deployments.values()
            if each.loaded_versions
        }
        for loaded_versions in shared.values():
            loaded_versions.on_evictions = residency.ledger.evictions.update

    async def needs(self, version: ModelVersion) -> ModelNeeds:
        """Return no needs: the memory is that of the replicas. Raises InvalidModel for a model without deployment."""
        self._deployment(version)
        return ModelNeeds(0, 0, wanted="cpu")

    async def load(self, version: ModelVersion, devices: Sequence[Device]) -> tuple[ReplicaGroup, list[Started]]:
        """Wait until a replica has loaded the version. Raises InvalidModel, OutOfMemory, ModelFailed."""
        model = version.model
        version.is_background = False  # replicas have the priority that Ray gives to its workers
        group, started = await open_group(
            self._deployment(version),
            model.engine_settings,
            model.runs[version.version],
            version.version,
            str(version.path),
            model.entry.instances,
            partial(self._on_evicted, version),
        )
        version.replica_bytes = lambda: group.replica_bytes
        loaded = started.loaded
        here = type(loaded)(loaded.spec, 0, loaded.load_s, loaded.warm_up_s)
        return group, [Started(started.link, here, started.spec) for _ in devices]

    def discard(self, version: ModelVersion) -> None:
        """Nothing is prepared before a load."""

    def close(self) -> None:
        """Nothing is prepared before a load."""

    def _deployment(self, version: ModelVersion) -> Deployed:
        name = version.model.name
        if name not in self._deployments:
            raise InvalidModel(
                f'model "{name}": expected a model of the config file, got a new one; add it there and deploy again'
            )
        return self._deployments[name]
