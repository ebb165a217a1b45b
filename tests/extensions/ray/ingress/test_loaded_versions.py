"""The choice of the replica that loads a version, by what the replicas report."""

from extensions.ray.handshake import Address
from extensions.ray.ingress.loaded_versions import LoadedVersions
from extensions.ray.running_replicas import RunningReplicas
from frameworks.engine.process.wire.messages import ReplicaReport, VersionReport
from tests.support.loops import in_loop, pass_time, settle

KEY = ("m", "1", "files")
OTHER = ("other", "1", "files")


def known(**replicas: tuple[list[tuple[str, float]], int, float]) -> LoadedVersions:
    """Return the reports of replicas: models and their queued seconds, free bytes, queued seconds of all."""
    loaded_versions = LoadedVersions(RunningReplicas(), "ingress")
    for replica, (models, free_bytes, queued_s) in replicas.items():
        loaded = [VersionReport(model, "1", "files", 100, seconds) for model, seconds in models]
        loaded_versions._note(replica, ReplicaReport(loaded, free_bytes, queued_s))
    return loaded_versions


@in_loop
async def test_loaded_replica_is_chosen_before_free_one() -> None:
    loaded_versions = known(a=([("m", 2.0)], 0, 5.0), b=([], 500, 0.0))
    assert loaded_versions.choose("ab", KEY) == "a"


@in_loop
async def test_least_queued_of_loaded_replicas_is_chosen() -> None:
    loaded_versions = known(a=([("m", 0.0)], 0, 5.0), b=([("m", 0.0)], 0, 1.0), c=([], 500, 0.0))
    assert loaded_versions.choose("abc", KEY) == "b"


@in_loop
async def test_replica_with_room_is_chosen_for_known_size() -> None:
    loaded_versions = known(a=([("m", 0.0)], 0, 0.0), b=([], 99, 0.0), c=([], 100, 3.0))
    assert loaded_versions.choose("bc", KEY) == "c"
    with loaded_versions.loading("c", KEY):
        assert not loaded_versions.has_room("c", KEY)
        assert loaded_versions.choose("bc", KEY) == "b"
    assert loaded_versions.choose("bc", KEY) == "c"


@in_loop
async def test_loads_in_progress_spread_new_models() -> None:
    loaded_versions = known(a=([], 500, 0.0), b=([], 500, 0.0))
    with loaded_versions.loading("a", OTHER):
        assert loaded_versions.choose("ab", KEY) == "b"
        with loaded_versions.loading("b", OTHER), loaded_versions.loading("b", OTHER):
            assert loaded_versions.choose("ab", KEY) == "a"


@in_loop
async def test_queued_work_of_other_models_is_counted() -> None:
    loaded_versions = known(a=([("m", 2.0), ("other", 3.0)], 0, 5.0))
    assert loaded_versions.queued_s("a", KEY) == 3.0
    assert loaded_versions.queued_s("a") == 5.0
    assert loaded_versions.queued_s("absent", KEY) == 0.0


@in_loop
async def test_choice_waits_for_first_report_only_so_long() -> None:
    running = RunningReplicas()
    loaded_versions = LoadedVersions(running, "ingress")
    loaded_versions.open()
    # Nothing listens there.
    running.publish({"a": Address("a", "node", "127.0.0.1", 1, "00")})
    calls: list[None] = []
    loaded_versions.on_changed(lambda: calls.append(None))
    await settle()
    loaded_versions._unknown["a"] = float("inf")
    assert loaded_versions.choose("a", KEY) is None
    assert loaded_versions.choose("a", KEY, may_wait=False) == "a"
    del loaded_versions._unknown["a"]
    assert loaded_versions.choose("a", KEY) == "a"
    calls.clear()
    pass_time(3.0)
    await settle()
    assert calls
    loaded_versions.close()


@in_loop
async def test_lost_replica_is_forgotten() -> None:
    loaded_versions = known(a=([("m", 0.0)], 0, 0.0))
    assert loaded_versions.has_loaded("a", KEY)
    loaded_versions._note("a", None)
    assert not loaded_versions.has_loaded("a", KEY)
    assert loaded_versions.choose([], KEY) is None
