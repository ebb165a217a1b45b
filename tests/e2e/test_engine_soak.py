"""Kills of engine processes at random moments under load; then the server is at rest and has lost nothing."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.engines import ISOLATED, engines, restarts
from tests.e2e.server import RunningServer, serving
from tests.e2e.soaks import LONG, LONG_TIMEOUT_S, MODELS, PERMITTED, SHORT, Plan, descriptors_at_rest, entries, soak

pytestmark = pytest.mark.extended

SEED = random.SystemRandom().randrange(10**6)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with serving(tmp_path, entries(tmp_path) + ISOLATED) as running:
        yield running.wait_ready()


@pytest.mark.parametrize(
    "plan",
    [
        # test_engine_ends.py and test_engine_processes.py kill engines one at a time.
        pytest.param(Plan(*SHORT, frozenset(MODELS), SEED), marks=pytest.mark.nightly),
        pytest.param(
            Plan(*LONG, frozenset(MODELS), SEED), marks=(pytest.mark.nightly, pytest.mark.timeout(LONG_TIMEOUT_S))
        ),
    ],
    ids=["short", "long"],
)
def test_kills_of_engines_lose_nothing(server: RunningServer, plan: Plan) -> None:
    at_start = descriptors_at_rest(server)
    killed = soak(server, plan, lambda _: engines(server), PERMITTED)
    assert 0 < sum(restarts(server, model) for model in MODELS) <= killed.total()
    assert descriptors_at_rest(server) == at_start
    server.check_log()
