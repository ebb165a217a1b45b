"""The bounds of a model hold over all workers, and its counts in the supervisor are those of all."""

import pickle

import pytest

from app.workers.messages import messages_to_worker
from frameworks.core.errors import OutOfMemory, Overloaded
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.engine.threads import EngineThreads
from frameworks.models.replicas.changes import state_of
from frameworks.models.replicas.control import ControlLink
from frameworks.models.replicas.identities import Identities
from frameworks.models.replicas.peers import Peer
from frameworks.models.versions.slot import ModelSlot
from frameworks.scheduling.admission import Permit, RequestLimit
from frameworks.scheduling.device_clock import SharedDevices
from frameworks.scheduling.shared_limits import SharedLimits
from tests.support.batch_models import FakeRegistry
from tests.support.loops import in_loop
from tests.support.managing import make_manager, register


def published(slot: ModelSlot, shared: SharedLimits, worker: int, peer: Peer) -> ModelSlot:
    """Return the model as this worker makes it."""
    shared.use(worker)
    identities = Identities(PerformanceSettings(), SchedulingSettings(), SharedDevices(), EngineThreads(), shared)
    return identities.slot_of(state_of(slot, pickle.dumps(slot.entry), peer))


@in_loop
async def test_workers_share_bound_of_model() -> None:
    shared = SharedLimits(2, [])
    async with make_manager(FakeRegistry(), shared_limits=shared) as manager:
        slots = [register(manager, name, max_concurrent_requests=2) for name in "mn"]
        peer = Peer(ControlLink(0, messages_to_worker()))
        workers = [published(slots[0], shared, worker, peer) for worker in range(2)]
        server = RequestLimit("the server", None, None)
        for worker in workers:
            Permit(server).queue(worker.requests)
        with pytest.raises(Overloaded, match='model "m": 2 requests are in flight'):
            Permit(server).queue(workers[0].requests)
        assert (slots[0].requests.inflight, slots[0].queue_depth) == (2, 2)
        assert slots[1].requests.inflight == 0
        shared.release(1)
        assert slots[0].requests.inflight == 1


@in_loop
async def test_removed_model_gives_its_row_back() -> None:
    shared = SharedLimits(1, [], max_models=1)
    async with make_manager(FakeRegistry(), shared_limits=shared) as manager:
        slot = register(manager)
        with pytest.raises(OutOfMemory):
            register(manager, "n")
        slot.requests.acquire()
        await manager.remove("m")
        with pytest.raises(OutOfMemory):
            register(manager, "n")
        slot.requests.release(completed=False)
        assert register(manager, "n").requests.inflight == 0
