"""Models in processes of their own: killed, crashed by a request or a file, ended with the server, and managed."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.configs import onnx_entries
from tests.e2e.engines import (
    ISOLATED,
    Question,
    engine,
    engines,
    halted,
    loaded,
    restarts,
    state,
    wait_at_rest,
    wait_for_restart,
)
from tests.e2e.load import batches, batches_since, wait_for_inflight
from tests.e2e.server import WAIT_S, RunningServer, assert_refused, serving, wait_until
from tests.support.models import onnx_crashes, onnx_graphs
from tests.support.models.causal_folders import save_causal_model

SIGNALS = {"segv": signal.SIGSEGV, "kill": signal.SIGKILL, "abrt": signal.SIGABRT}
LONG = [1e9, 0.0, 0.0, 0.0]
"""A request to `turns` that runs for minutes."""
SHORT = [1.0, 2.0, 3.0, 4.0]
LARGE = 8192
"""Numbers of 32 KiB, which travel in shared memory."""


def question(model: str, size: int = LARGE) -> Question:
    """A request to an identity."""
    numbers = [float(i) for i in range(size)]
    return Question(model, {"input_data": numbers}, lambda body: bool(body["output_data"] == numbers))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose models are killed: each test has its own, because later crashes in a row restart later.

    A test of the second tier loads its model by a request, so that the first tier does not start its process.
    """
    folder = tmp_path_factory.mktemp("engines")
    graphs = {name: onnx_graphs.identity() for name in (*SIGNALS, "other")}
    graphs |= {"turns": onnx_crashes.turns(), "poisoned": onnx_crashes.negated()}
    path = save_causal_model(folder / "lm", max_position_embeddings=4096)
    entries = f'[[models.torch_models]]\nname = "lm"\npath = "{path}"\n' + onnx_entries(folder, graphs)
    for name in graphs.keys() - {"segv", "other"} | {"lm"}:
        entries = entries.replace(f'name = "{name}"\n', f'name = "{name}"\nload = "lazy"\n')
    with serving(folder, entries + ISOLATED) as running:
        yield running.wait_ready()
        wait_at_rest(running, len(engines(running)))
        running.check_log()


@pytest.mark.parametrize(
    "name", ["segv", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("abrt", "kill"))]
)
def test_killed_engine_fails_no_request(server: RunningServer, name: str) -> None:
    server.infer(name, **question(name).body)
    count = len(engines(server))
    before = engine(server, name)
    states = set()
    with loaded(server, {question(name): 4, question("other"): 4}) as load:
        load.wait_for_more(name, "other")
        os.kill(before.pid, SIGNALS[name])

        def is_ready() -> bool:
            states.add(state(server, name))
            return restarts(server, name) == 1 and state(server, name) == "ready"

        wait_until(is_ready)
        load.wait_for_more(name, "other")
    assert set(load.outcomes) == {(name, "right"), ("other", "right")}, load.problems[:3]
    assert states & {"failed", "loading"}
    assert restarts(server, name, f"sig{name}") == 1
    assert engine(server, name) != before
    assert restarts(server, "other") == 0
    wait_at_rest(server, count)


@pytest.mark.extended
def test_held_requests_run_after_restart(server: RunningServer) -> None:
    """The process is stopped, so that it is certain to hold requests when it is killed."""
    bodies = [{"input_data": [float(i)] * LARGE} for i in range(8)]
    with ThreadPoolExecutor(8) as pool, halted(server, "other") as process:
        before = restarts(server, "other")
        asked = [pool.submit(server.infer, "other", **body) for body in bodies]
        wait_for_inflight(server, 8, "other")
        process.kill()
        for body, answer in zip(bodies, asked, strict=True):
            assert answer.result(WAIT_S)["output_data"] == body["input_data"]
    assert restarts(server, "other") == before + 1


def generation(**settings: object) -> dict[str, object]:
    return {"prompt": "on and on", "temperature": 0, "ignore_eos": True, **settings}


@pytest.mark.extended
def test_texts_after_kill_fail_or_run_again(server: RunningServer) -> None:
    """A stream that has begun gets an error; a text of which nothing was sent is generated again."""
    whole = generation(max_tokens=30)
    expected = server.infer("lm", **whole)["text"]
    endless = generation(max_tokens=3500, stream=True)
    count = len(engines(server))
    before = engine(server, "lm")
    with (
        ThreadPoolExecutor(1) as pool,
        server.client.stream("POST", "/models/lm/infer", json=endless) as answer,
    ):
        lines = answer.iter_lines()
        first = next(line for line in lines if "{" in line)
        assert json.loads(first.removeprefix("data: "))["text"]
        with halted(server, "lm") as process:
            asked = pool.submit(server.infer, "lm", **whole)
            wait_for_inflight(server, 2, "lm")
            process.kill()
            *_, last = [line for line in lines if "{" in line]
            assert asked.result(WAIT_S)["text"] == expected
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "model_failed"
    wait_for_restart(server, "lm", before)
    wait_at_rest(server, count)


@pytest.mark.extended
@onnx_crashes.TRAPS
def test_poison_request_is_refused_others_answered(server: RunningServer) -> None:
    poison = {"input_data": [onnx_crashes.POISON]}
    with ThreadPoolExecutor(1) as pool, loaded(server, {question("other"): 2}) as load:
        asked = pool.submit(server.client.post, "/models/poisoned/infer", json=poison)
        assert_refused(asked.result(WAIT_S), 503, "model_failed", "SIGFPE")
        load.wait_for_more("other")
    assert restarts(server, "poisoned", "sigfpe") == 2
    wait_until(lambda: state(server, "poisoned") == "ready")
    before = engine(server, "poisoned")
    refused = server.client.post("/models/poisoned/infer", json=poison)
    assert_refused(refused, 503, "model_failed", "the same request ended its process twice")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert server.infer("poisoned", input_data=[7])["output_data"] == [-7]
    assert engine(server, "poisoned") == before


@pytest.mark.extended
def test_disconnected_client_cancels_in_engine(server: RunningServer) -> None:
    """Requests wait in the queue of the process behind a run; no caller waits for them."""
    server.infer("turns", input_data=SHORT)
    before = batches(server, "turns")
    with halted(server, "turns"):
        with ThreadPoolExecutor(6) as pool:
            impatient = [pool.submit(give_up, server, SHORT) for _ in range(6)]
            wait_for_inflight(server, 6, "turns")
            assert [each.result(WAIT_S) for each in impatient] == [True] * 6
        wait_for_inflight(server, 0, "turns")
    assert server.infer("turns", input_data=SHORT)["output_data"] == SHORT
    assert server.sample("roundhouse_queue_depth", model="turns") == 0
    # One may have begun before its Cancel was read, and one more was next.
    assert 1 <= batches_since(before, server, "turns")[0] <= 3
    wait_at_rest(server, len(engines(server)))


def give_up(server: RunningServer, numbers: list[float]) -> bool:
    """Close the connection before the answer; return whether there was none."""
    try:
        httpx.post(f"{server.url}/models/turns/infer", json={"input_data": numbers}, timeout=1, verify=False)
    except httpx.ReadTimeout:
        return True
    return False
