"""Engine processes at their limits, with files that crash them, and at the end of the server."""

import json
import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.configs import onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.engines import (
    ISOLATED,
    Question,
    children,
    engine,
    halted,
    is_alive,
    loaded,
    restarts,
    state,
    wait_at_rest,
    wait_ended,
)
from tests.e2e.load import wait_for_drain, wait_for_inflight
from tests.e2e.server import WAIT_S, RunningServer, assert_refused, wait_until
from tests.support.models import onnx_costly_graphs, onnx_crashes, onnx_graphs
from tests.support.models.causal_folders import save_causal_model

ENDLESS = {"input_data": [1e9, 0.0, 0.0, 0.0]}
"""A request to `turns` that runs for minutes."""
SHORT = {"input_data": [1.0, 2.0, 3.0, 4.0]}
OTHER = Question("other", SHORT, lambda body: bool(body["output_data"] == SHORT["input_data"]))


def entries(folder: Path, **keys: str) -> str:
    """Return entries of `turns` and `other`, isolated. `keys`: further lines of `turns`."""
    turns = onnx_entries(folder, {"turns": onnx_crashes.turns()})
    lines = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return turns + lines + onnx_entries(folder, {"other": onnx_graphs.identity()}) + ISOLATED


@pytest.mark.extended
def test_run_beyond_limit_is_ended(start: Start, tmp_path: Path) -> None:
    server = start(entries(tmp_path, max_batch_seconds="2")).wait_ready()
    with ThreadPoolExecutor(1) as pool, loaded(server, {OTHER: 2}) as load:
        asked = pool.submit(server.client.post, "/models/turns/infer", json=ENDLESS)
        answer = asked.result(WAIT_S)
        load.wait_for_more("other")
    assert_refused(answer, 503, "model_failed", "max_batch_seconds")
    assert int(answer.headers["retry-after"]) >= 1
    assert set(load.outcomes) == {("other", "right")}, load.problems[:3]
    assert restarts(server, "turns", "hang") == restarts(server, "turns") == 2
    wait_until(lambda: state(server, "turns") == "ready")
    assert server.infer("turns", **SHORT)["output_data"] == SHORT["input_data"]
    wait_at_rest(server, 2)


@pytest.mark.extended
def test_batch_beyond_memory_is_refused(start: Start, tmp_path: Path) -> None:
    """The kernel refuses the allocation, whether the process survives that or not."""
    config = onnx_entries(tmp_path, {"blow-up": onnx_costly_graphs.blow_up()}) + 'max_process_memory = "1GiB"\n'
    server = start(config + onnx_entries(tmp_path, {"other": onnx_graphs.identity()}) + ISOLATED).wait_ready()
    with loaded(server, {OTHER: 2}) as load:
        answer = server.client.post("/models/blow-up/infer", json={"input_data": [2**29]})
        load.wait_for_more("other")
    assert set(load.outcomes) == {("other", "right")}, load.problems[:3]
    if answer.status_code == 503:
        assert_refused(answer, 503, "model_failed", "memory was exhausted")
        assert restarts(server, "blow-up", "memory") == restarts(server, "blow-up") > 0
        wait_until(lambda: state(server, "blow-up") == "ready")
    else:
        assert_refused(answer, 507, "out_of_memory")
        assert restarts(server, "blow-up") == 0
    assert server.infer("blow-up", input_data=[3])["output_data"] == [0, 0, 0]
    wait_at_rest(server, 2)


@pytest.mark.extended
@onnx_crashes.TRAPS
def test_file_that_crashes_loader_fails_model(start: Start, tmp_path: Path) -> None:
    graphs = {"crashes": onnx_crashes.negated_constant(), "other": onnx_graphs.identity()}
    config = onnx_entries(tmp_path, graphs)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.onnx").write_bytes(b"\x08\x0a" + b"\xff" * 100)
    config += f'[[models.onnx_models]]\nname = "broken"\npath = "{tmp_path / "broken"}"\n'
    server = start(config + ISOLATED)
    wait_until(lambda: state(server, "other") == "ready")
    for model in ("crashes", "broken"):
        wait_until(lambda model=model: state(server, model) == "failed")  # type: ignore[misc]
        assert_refused(server.client.post(f"/models/{model}/infer", json={"input_data": [1]}), 503, "model_failed")
    assert "SIGFPE" in server.client.get("/models/crashes").json()["reason"]
    assert server.infer("other", **SHORT)["output_data"] == SHORT["input_data"]
    wait_at_rest(server, 1)
    # A file that is repaired is loaded by the next order.
    onnx_graphs.save(onnx_graphs.identity(), tmp_path / "crashes")
    assert server.client.post("/models/crashes/load").status_code == 200
    assert server.infer("crashes", **SHORT)["output_data"] == SHORT["input_data"]
    wait_at_rest(server, 2)


def begin(server: RunningServer, pool: ThreadPoolExecutor, body: object) -> "Future[httpx.Response]":
    """Send a request to `turns`, which runs when this returns."""
    asked = pool.submit(server.client.post, "/models/turns/infer", json=body)
    wait_for_inflight(server, 1, "turns")
    process = engine(server, "turns")
    used_s = sum(process.cpu_times()[:2])
    # It computes: nothing else takes its CPU time.
    wait_until(lambda: sum(process.cpu_times()[:2]) > used_s + 0.2)
    return asked


@pytest.mark.extended
@pytest.mark.parametrize("is_busy", [False, True])
def test_killed_server_leaves_no_process(start: Start, tmp_path: Path, is_busy: bool) -> None:
    server = start(entries(tmp_path)).wait_ready()
    with ThreadPoolExecutor(1) as pool:
        if is_busy:
            begin(server, pool, ENDLESS)
        processes = children(server)
        assert len(processes) == 2
        server.process.kill()
        server.process.wait(WAIT_S)
        wait_ended(processes)


@pytest.mark.extended
def test_killed_server_ends_halted_process(start: Start, tmp_path: Path) -> None:
    """A stopped process reads no end of its connection: the kernel ends it."""
    server = start(entries(tmp_path)).wait_ready()
    processes = children(server)
    with halted(server, "turns"):
        server.process.kill()
        server.process.wait(WAIT_S)
        wait_ended(processes)


def test_sigterm_drains_engines(start: Start, tmp_path: Path) -> None:
    path = save_causal_model(tmp_path / "lm", max_position_embeddings=4096)
    lm = f'[[models.torch_models]]\nname = "lm"\npath = "{path}"\n'
    server = start(lm + entries(tmp_path)).wait_ready()
    processes = children(server)
    text = {"prompt": "on and on", "temperature": 0, "ignore_eos": True, "max_tokens": 60, "stream": True}
    with (
        ThreadPoolExecutor(8) as pool,
        httpx.Client(base_url=server.url, timeout=WAIT_S, verify=False) as client,
        client.stream("POST", "/models/lm/infer", json=text) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        with halted(server, "other"):
            asked = [pool.submit(client.post, "/models/other/infer", json=SHORT) for _ in range(8)]
            wait_for_inflight(server, 8, "other")
            server.process.send_signal(signal.SIGTERM)
            wait_for_drain(server)
            assert all(is_alive(process) for process in processes)
        for each in asked:
            assert each.result(WAIT_S).json()["output_data"] == SHORT["input_data"]
        *_, last = [json.loads(line.removeprefix("data: ")) for line in lines if "{" in line]
        assert last["tokens_generated"] == 60
    server.wait_stopped(0)
    wait_ended(processes)


@pytest.mark.extended
def test_second_signal_ends_engines_at_once(start: Start, tmp_path: Path) -> None:
    server = start(entries(tmp_path)).wait_ready()
    processes = children(server)
    with ThreadPoolExecutor(1) as pool:
        asked = begin(server, pool, ENDLESS)
        server.process.send_signal(signal.SIGTERM)
        wait_for_drain(server)
        os.kill(server.process.pid, signal.SIGTERM)
        server.wait_stopped(128 + signal.SIGTERM)
        wait_ended(processes)
        with pytest.raises(httpx.TransportError):
            asked.result(WAIT_S)
