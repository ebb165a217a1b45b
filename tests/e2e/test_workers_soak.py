"""Kills of workers and engines at random moments under load; then the server is at rest and has lost nothing."""

import random
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tests.e2e.engines import ISOLATED, children, engines, is_alive
from tests.e2e.server import RunningServer, serving, wait_until
from tests.e2e.soaks import LONG, LONG_TIMEOUT_S, PERMITTED, SHORT, Plan, descriptors_at_rest, entries, settled, soak

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes by their names"),
    pytest.mark.nightly,
]

COUNT = 3
WORKER = "worker"
SEED = random.SystemRandom().randrange(10**6)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(*SHORT, frozenset({WORKER}), SEED),
        pytest.param(Plan(*LONG, frozenset({WORKER}), SEED), marks=pytest.mark.timeout(LONG_TIMEOUT_S)),
    ],
    ids=["short", "long"],
)
def test_kills_of_workers_lose_only_connections(tmp_path: Path, plan: Plan) -> None:
    with serving(tmp_path, f"[server]\nworkers = {COUNT}\n" + ISOLATED + entries(tmp_path)) as server:
        server.wait_ready()
        at_start = measured(server)
        killed = soak(server, plan, lambda killed: victims(server, killed), PERMITTED | {"lost"})
        assert settled(lambda: worker_restarts(server)) == killed[WORKER]
        assert measured(server) == at_start
        server.check_log()


def victims(server: RunningServer, killed: Counter[str]) -> list[tuple[str, psutil.Process]]:
    """Return the engines, and the workers while several serve: without any the requests would test nothing."""
    # A worker that was killed may be counted as serving until the server has noted its end.
    has_noted_all = settled(lambda: worker_restarts(server)) == killed[WORKER]
    if has_noted_all and settled(lambda: server.sample("roundhouse_workers")) > 1:
        return engines(server) + workers(server)
    return engines(server)


def workers(server: RunningServer) -> list[tuple[str, psutil.Process]]:
    return [(WORKER, each) for each in children(server) if is_alive(each) and each.name().startswith("rh:worker")]


def worker_restarts(server: RunningServer) -> float:
    return server.sample("roundhouse_worker_restarts_total")


def measured(server: RunningServer) -> Counter[str]:
    """Wait until the server is at rest; return the descriptors of its processes."""
    wait_until(lambda: settled(lambda: server.sample("roundhouse_workers")) == COUNT)
    return descriptors_at_rest(server, COUNT + 1)  # and the fork server
