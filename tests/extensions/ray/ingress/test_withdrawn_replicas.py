"""Replicas that Serve has withdrawn, with an injected clock."""

from extensions.ray.ingress.withdrawn_replicas import ANNOUNCED_S, MAX_WITHDRAWN, WithdrawnReplicas
from tests.support.clocks import Clock


def test_withdrawn_replica_has_left_a_second_later() -> None:
    clock = Clock()
    departures = WithdrawnReplicas(clock)
    departures.note(["a", "b"], ["b"])
    assert not departures.is_withdrawn("a")
    clock.now_s += ANNOUNCED_S
    assert departures.is_withdrawn("a")
    assert not departures.is_withdrawn("b")


def test_replica_that_runs_again_has_not_left() -> None:
    clock = Clock()
    departures = WithdrawnReplicas(clock)
    departures.note(["a"], [])
    departures.note([], ["a"])
    clock.now_s += ANNOUNCED_S
    assert not departures.is_withdrawn("a")


def test_full_record_forgets_oldest_departure() -> None:
    clock = Clock()
    departures = WithdrawnReplicas(clock)
    names = [str(number) for number in range(MAX_WITHDRAWN + 1)]
    for name in names:
        departures.note([name], [])
    clock.now_s += ANNOUNCED_S
    assert not departures.is_withdrawn(names[0])
    assert departures.is_withdrawn(names[1])
