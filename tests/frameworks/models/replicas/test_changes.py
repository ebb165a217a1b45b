import os
import pickle
from pathlib import Path

from msgspec import msgpack

from app.workers.messages import messages_to_worker
from frameworks.core.settings.entries import OnnxModelEntry
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from frameworks.engine.threads import EngineThreads
from frameworks.models.replicas.changes import state_of
from frameworks.models.replicas.control import ControlLink
from frameworks.models.replicas.identities import Identities
from frameworks.models.replicas.messages import ModelState
from frameworks.models.replicas.peers import Peer
from frameworks.scheduling.device_clock import SharedDevices
from tests.support.batch_models import FakeRegistry
from tests.support.loops import in_loop
from tests.support.managing import make_manager


@in_loop
async def test_path_without_text_reaches_workers() -> None:
    path = Path(os.fsdecode(b"/models/odd\xff.onnx"))
    async with make_manager(FakeRegistry()) as manager:
        slot = manager.register("fake", OnnxModelEntry(name="odd", path=Path("odd")), path)
        state = state_of(slot, pickle.dumps(slot.entry), Peer(ControlLink(0, messages_to_worker())))
        received = msgpack.decode(msgpack.encode(state), type=ModelState)
        identities = Identities(PerformanceSettings(), SchedulingSettings(), SharedDevices(), EngineThreads())
        found = identities.slot_of(received)
        assert found.path == path
        assert [each.path for each in found.versions.values()] == [path]
