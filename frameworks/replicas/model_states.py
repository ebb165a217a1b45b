"""Describe a model for one worker."""

import os

from frameworks.engine.process.wire.messages import ErrorState
from frameworks.engine.process.wire.serialization import error_to_plain
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.traffic import Share
from frameworks.models.versions.version import ModelState as Phase
from frameworks.models.versions.version import ModelVersion
from frameworks.replicas.messages import ModelState, ShareState, VersionState
from frameworks.replicas.peers import Peer


def state_of(slot: ModelSlot, entry: bytes, peer: Peer) -> ModelState:
    """Return the state of a model for a worker. `entry`: pickle of its settings."""
    return ModelState(
        name=slot.name,
        framework=slot.framework,
        entry=entry,
        path=os.fsencode(slot.path),
        isolation=slot.isolation,
        counters=0 if slot.identity.row is None else slot.identity.row.number,
        versions=[_version_state(version, peer) for version in slot.versions.values()],
        active=slot.active.version,
        previous=slot.previous.version if slot.previous else None,
        canary=_share_state(slot.canary),
        shadow=_share_state(slot.shadow),
    )


def _version_state(version: ModelVersion, peer: Peer) -> VersionState:
    phase, serving = version.phase, 0
    failure = version.failure if phase is Phase.FAILED else None
    load = peer.loads.get(version.serving_id) if version.spec is not None else None
    if phase is Phase.READY and (load is None or not load.is_held):
        # The supervisor and other workers have it.
        failure = None if load is None or load.prepare is not None else load.failure
        phase = Phase.LOADING if failure is None else Phase.FAILED
    elif load is not None and (phase is Phase.READY or load.is_shown):
        serving = version.serving_id
    return VersionState(
        version=version.version,
        path=os.fsencode(version.path),
        state=phase.value,
        next_state=version.next_state.value,
        waits_for_load=version.waits_for_load,
        serving=serving,
        load_s=version.load_s,
        memory_bytes=version.memory_bytes,
        failure=_error_state(failure),
        retry_in_s=version.retry_in_s if failure is not None else 0.0,
    )


def _error_state(error: Exception | None) -> ErrorState | None:
    return None if error is None else error_to_plain(error)


def _share_state(share: Share | None) -> ShareState | None:
    return None if share is None else ShareState(share.version, share.percent)
