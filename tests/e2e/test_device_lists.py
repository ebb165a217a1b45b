"""Models with a process on each of several devices: here two on the CPU."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.e2e.configs import onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.engines import Question, engine, engines, halted, loaded, restarts, state, wait_at_rest
from tests.e2e.load import wait_for_inflight
from tests.e2e.server import WAIT_S, RunningServer, assert_refused, wait_until
from tests.support.models import onnx_costly_graphs, onnx_graphs
from tests.support.models.causal_folders import save_causal_model

pytestmark = pytest.mark.extended

BOTH = 'device = ["cpu", "cpu"]\n'
SHORT = {"input_data": [1.0, 2.0, 3.0, 4.0]}
SIDE = onnx_costly_graphs.side(0.1)
PLAIN = Question("m", SHORT, lambda body: bool(body["output_data"] == SHORT["input_data"]))
WEIGHTED = Question(
    "m", {"input_data": [1] * SIDE}, lambda body: bool(body["output_data"] == [int(body["version"])] * SIDE)
)


def processes(server: RunningServer) -> list[str]:
    return sorted(name for name, _ in engines(server))


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def wait_until_both_work(server: RunningServer) -> None:
    """Wait until each process has used the CPU for some time."""
    both = [process for _, process in engines(server)]
    before = [cpu_s(each) for each in both]
    wait_until(lambda: all(cpu_s(each) >= start_s + 0.1 for each, start_s in zip(both, before, strict=True)))


@pytest.mark.extended
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_process_fails_no_request(start: Start, tmp_path: Path, workers: int) -> None:
    # Runs of 5 ms, so that few requests show that both processes work.
    entries = onnx_entries(tmp_path, {"m": onnx_costly_graphs.slow(5)}) + BOTH
    server = start(entries + f"[server]\nworkers = {workers}\n").wait_ready()
    assert processes(server) == ["m.0", "m.1"]
    others = len(psutil.Process(server.process.pid).children()) - 2
    states = set()
    with loaded(server, {PLAIN: 16}) as load:
        wait_until_both_work(server)
        before = engine(server, "m.0")
        os.kill(before.pid, signal.SIGSEGV)

        def is_restarted() -> bool:
            states.add(state(server, "m"))
            return restarts(server, "m", "sigsegv") == 1 and len(engines(server)) == 2

        wait_until(is_restarted)
        load.wait_for_more("m")
        wait_until_both_work(server)
    assert set(load.outcomes) == {("m", "right")}, load.problems[:3]
    assert states == {"ready"}
    assert engine(server, "m.0") != before
    if not others:
        wait_at_rest(server, 2)


@pytest.mark.extended
def test_model_is_failed_while_all_are_down(start: Start, tmp_path: Path) -> None:
    server = start(onnx_entries(tmp_path, {"m": onnx_graphs.identity()}) + BOTH).wait_ready()
    for _, process in engines(server):
        process.kill()
    wait_until(lambda: state(server, "m") == "failed")
    assert server.infer("m", **SHORT)["output_data"] == SHORT["input_data"]
    wait_until(lambda: restarts(server, "m", "sigkill") == 2 and processes(server) == ["m.0", "m.1"])
    wait_at_rest(server, 2)


def test_second_process_answers_beside_halted_one(start: Start, tmp_path: Path) -> None:
    server = start(onnx_entries(tmp_path, {"m": onnx_graphs.identity()}) + BOTH).wait_ready()
    with ThreadPoolExecutor(1) as pool:
        with halted(server, "m.0"):
            waiting = pool.submit(server.infer, "m", **SHORT)
            wait_for_inflight(server, 1, "m")
            for _ in range(20):
                assert server.infer("m", **SHORT)["output_data"] == SHORT["input_data"]
            assert not waiting.done()
        assert waiting.result(WAIT_S)["output_data"] == SHORT["input_data"]
    wait_at_rest(server, 2)


def test_orders_hold_for_both_processes(start: Start, tmp_path: Path) -> None:
    for version in (1, 2):
        (tmp_path / "m" / str(version)).mkdir(parents=True)
        onnx_graphs.save(onnx_costly_graphs.weighted(version, 0.1), tmp_path / "m" / str(version))
    server = start(f'[[models.onnx_models]]\nname = "m"\npath = "{tmp_path / "m"}"\n{BOTH}').wait_ready()
    detail = server.client.get("/models/m").json()
    assert detail["device"] == "cpu,cpu"
    with loaded(server, {WEIGHTED: 8}) as load:
        for name in ("1", "2"):
            assert server.client.post("/models/m/load", json={"version": name}).status_code == 200
            load.wait_for_more("m")
    assert set(load.outcomes) == {("m", "right")}, load.problems[:3]
    assert processes(server) == ["m.0", "m.1"]
    assert server.client.post("/models/m/unload").status_code == 200
    wait_at_rest(server, 0)
    assert_refused(server.client.post("/models/m/infer", json=WEIGHTED.body), 503, "unloaded")
    assert server.client.post("/models/m/load").status_code == 200
    assert server.infer("m", **WEIGHTED.body)["version"] == "2"
    wait_at_rest(server, 2)


@pytest.mark.extended
def test_missing_cuda_devices_fail_the_model(start: Start, tmp_path: Path) -> None:
    entries = onnx_entries(tmp_path, {"m": onnx_graphs.identity()}) + 'device = "cuda:*"\nload = "lazy"\n'
    server = start(entries + "[performance]\nenable_gpu = false\n").wait_ready()
    answer = server.client.post("/models/m/load")
    assert answer.status_code >= 400
    assert 'device: expected a CUDA device for "cuda:*"' in answer.json()["error"]["message"]
    wait_at_rest(server, 0)


@pytest.mark.extended
def test_texts_are_generated_in_both_processes(start: Start, tmp_path: Path) -> None:
    path = save_causal_model(tmp_path / "lm", max_position_embeddings=4096)
    server = start(f'[[models.torch_models]]\nname = "lm"\npath = "{path}"\n{BOTH}').wait_ready()
    body = {"prompt": "on and on", "temperature": 0, "ignore_eos": True, "max_tokens": 30}
    expected = server.infer("lm", **body)["text"]
    with ThreadPoolExecutor(4) as pool:
        with halted(server, "lm.0"):
            waiting = pool.submit(server.infer, "lm", **body)
            wait_for_inflight(server, 1, "lm")
            assert server.infer("lm", **body)["text"] == expected
            assert not waiting.done()
        assert waiting.result(WAIT_S)["text"] == expected
        asked = [pool.submit(server.infer, "lm", **body) for _ in range(12)]
        assert {each.result(WAIT_S)["text"] for each in asked} == {expected}
    wait_at_rest(server, 2)
