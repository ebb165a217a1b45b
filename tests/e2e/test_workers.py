"""A server with two workers: one view of all requests, and the loss of any of its processes."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.e2e.configs import onnx_entries
from tests.e2e.engines import Question, engines, is_alive, loaded, wait_ended
from tests.e2e.server import GRPC_PORT, MODELS, WAIT_S, RunningServer, free_port, run_examples, serving, wait_until
from tests.support.models import onnx_graphs

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes by their names")

COUNT = 2
NEW_CONNECTIONS = 24
"""A worker gets none of them once in 2**23 times."""
CONFIG = f"""
[server]
workers = {COUNT}
[models]
roots = ["{{folder}}"]
[[models.onnx_models]]
name = "digits"
path = "{MODELS / "digits"}"
isolation = "process"
"""
NUMBERS = [1.0, 2.0, 3.0, 4.0]
SMALL = Question("small", {"input_data": NUMBERS}, lambda body: bool(body["output_data"] == NUMBERS))
DIGITS = Question("digits", {"input_data": [0.0] * 64}, lambda body: len(body["output_data"]) == 1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("workers")
    config = CONFIG.format(folder=folder) + onnx_entries(folder, {"small": onnx_graphs.identity()})
    onnx_entries(folder, {"later": onnx_graphs.identity()})
    with serving(folder, config, {GRPC_PORT: free_port()}) as running:
        running.folder = folder  # type: ignore[attr-defined]
        yield running.wait_ready()
        running.check_log()


def processes(server: RunningServer, name: str) -> list[psutil.Process]:
    """Return the processes of a server whose names begin like this."""
    found = psutil.Process(server.process.pid).children(recursive=True)
    return [each for each in found if is_alive(each) and each.name().startswith(name)]


def worker(server: RunningServer, number: int) -> psutil.Process:
    [found] = processes(server, f"rh:worker {number}")
    return found


def on_new_connections(server: RunningServer, method: str, path: str, body: object = None) -> list[httpx.Response]:
    """Send a request on each of many new connections, so that every worker gets some."""
    answers = []
    for _ in range(NEW_CONNECTIONS):
        with httpx.Client(base_url=server.url, timeout=WAIT_S, trust_env=False, verify=False) as client:
            answers.append(client.request(method, path, json=body))
    return answers


def statuses(server: RunningServer, model: str, body: object) -> set[int]:
    return {each.status_code for each in on_new_connections(server, "POST", f"/models/{model}/infer", body)}


def requests_by_worker(server: RunningServer) -> set[int]:
    """Return the numbers of the workers whose failed requests were logged."""
    return {event["worker"] for event in server.events("request", status=404)}


def wait_at_rest(server: RunningServer) -> None:
    """Wait until both workers run and nothing of a request is held."""
    gauges = ("inflight", "queue_depth", "buffered_bytes")

    def is_at_rest() -> bool:
        leased = server.sample("roundhouse_engine_shared_memory_bytes", kind="leased")
        return not leased and not any(server.sample(f"roundhouse_{name}") for name in gauges)

    wait_until(lambda: len(processes(server, "rh:worker")) == COUNT and server.sample("roundhouse_workers") == COUNT)
    wait_until(is_at_rest)
    assert server.sample("roundhouse_integrity_failures_total") == 0


def test_start_of_workers_is_reported_once(server: RunningServer) -> None:
    assert len(server.events("listening")) == 1
    answers = run_examples(server)
    assert len(answers) == 2
    assert "worker" not in server.wait_for_log("ready")
    assert answers[1][1]["model_name"] == "digits"


def test_ids_of_requests_differ_between_workers(server: RunningServer) -> None:
    answers = on_new_connections(server, "POST", "/models/small/infer", SMALL.body)
    ids = {each.headers["x-request-id"] for each in answers}
    assert len(ids) == NEW_CONNECTIONS
    assert len({each.partition("-")[0] for each in ids}) == COUNT


def test_all_workers_answer_over_http(server: RunningServer) -> None:
    before = server.sample("roundhouse_requests_total", code="200")
    for question in (DIGITS, SMALL):
        assert statuses(server, question.model, question.body) == {200}
    assert statuses(server, "unknown", SMALL.body) == {404}
    wait_until(lambda: requests_by_worker(server) == set(range(COUNT)))
    assert server.sample("roundhouse_requests_total", code="200") - before == 2 * NEW_CONNECTIONS
    assert server.sample("roundhouse_requests_total", model="digits", code="200") >= NEW_CONNECTIONS


def test_all_workers_answer_over_grpc(server: RunningServer) -> None:
    before = server.sample("roundhouse_requests_total", model="small")
    tensor = messages.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[4])
    tensor.contents.fp32_contents.extend(NUMBERS)
    request = messages.ModelInferRequest(model_name="small", inputs=[tensor])
    for _ in range(NEW_CONNECTIONS):
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options) as channel:
            stub = GRPCInferenceServiceStub(channel)
            assert stub.ModelInfer(request, timeout=WAIT_S).model_name == "small"
            assert stub.ServerReady(messages.ServerReadyRequest(), timeout=WAIT_S).ready
    assert server.sample("roundhouse_requests_total", model="small") - before == NEW_CONNECTIONS


def test_engine_process_is_shared_by_workers(server: RunningServer) -> None:
    assert [name for name, _ in engines(server)] == ["digits"]
    assert server.sample("roundhouse_workers") == COUNT
    assert {event["workers"] for event in server.events("listening")} == {COUNT}


def test_orders_hold_at_once_for_all(server: RunningServer) -> None:
    body = {"framework": "onnx", "name": "later", "path": str(server.folder / "later")}  # type: ignore[attr-defined]
    assert server.client.post("/models", json=body).status_code == 201
    assert statuses(server, "later", SMALL.body) == {200}
    assert server.client.post("/models/later/unload").status_code == 200
    assert statuses(server, "later", SMALL.body) == {503}
    assert server.client.post("/models/later/load").status_code == 200
    assert statuses(server, "later", SMALL.body) == {200}
    assert server.client.delete("/models/later").status_code == 200
    assert statuses(server, "later", SMALL.body) == {404}


def test_killed_worker_loses_only_its_connections(server: RunningServer) -> None:
    victim = worker(server, 0)
    restarts = server.sample("roundhouse_worker_restarts_total")
    outcomes: list[str] = []
    stop = threading.Event()

    def ask_on() -> None:
        """Keep a connection; open another one when it is lost."""
        while not stop.is_set():
            with httpx.Client(base_url=server.url, timeout=WAIT_S, trust_env=False, verify=False) as client:
                try:
                    while not stop.is_set():
                        answer = client.post("/models/digits/infer", json=dict(DIGITS.body))
                        outcomes.append(str(answer.status_code))
                except httpx.TransportError:
                    outcomes.append("lost")

    callers = [threading.Thread(target=ask_on) for _ in range(8)]
    for each in callers:
        each.start()
    wait_until(lambda: len(outcomes) > 50)
    os.kill(victim.pid, signal.SIGKILL)
    # The client of the test may lose its connection too.
    wait_ended([victim])
    server.wait_for_log("worker replaced", worker=0)
    with suppress(httpx.TransportError):
        server.client.get("/health/live")
    assert server.sample("roundhouse_worker_restarts_total", reason="sigkill") == restarts + 1
    count = len(outcomes)
    wait_until(lambda: len(outcomes) > count + 50)
    stop.set()
    for each in callers:
        each.join()
    assert set(outcomes) <= {"200", "lost"}
    assert outcomes.count("lost") <= len(callers)
    wait_at_rest(server)
    assert worker(server, 0).pid != victim.pid
    assert statuses(server, "digits", DIGITS.body) == {200}
    server.wait_for_log("worker ended", worker=0, reason="SIGKILL")


def test_counts_outlive_their_worker(server: RunningServer) -> None:
    before = server.sample("roundhouse_requests_total", model="small", code="200")
    assert statuses(server, "small", SMALL.body) == {200}
    assert server.sample("roundhouse_requests_total", model="small", code="200") == before + NEW_CONNECTIONS
    victim = worker(server, 1)
    os.kill(victim.pid, signal.SIGKILL)
    wait_ended([victim])
    with suppress(httpx.TransportError):
        server.client.get("/health/live")
    wait_at_rest(server)
    assert server.sample("roundhouse_requests_total", model="small", code="200") == before + NEW_CONNECTIONS


@pytest.mark.extended
def test_crashed_engine_fails_no_request(server: RunningServer) -> None:
    [(_, before)] = engines(server)
    with loaded(server, {DIGITS: 8, SMALL: 4}) as load:
        load.wait_for_more("digits", "small")
        os.kill(before.pid, signal.SIGSEGV)
        wait_until(lambda: [each for _, each in engines(server)] not in ([], [before]))
        load.wait_for_more("digits", "small")
    assert set(load.outcomes) == {("digits", "right"), ("small", "right")}, load.problems[:3]
    wait_at_rest(server)
    assert statuses(server, "digits", DIGITS.body) == {200}


@pytest.mark.extended
def test_delayed_worker_holds_up_no_connection(server: RunningServer) -> None:
    while True:
        victim = worker(server, 1)
        os.kill(victim.pid, signal.SIGKILL)
        ended = server.wait_for_log("worker ended", worker_pid=victim.pid)
        if ended["restart_in_s"] >= 4.0:
            break
        wait_until(lambda: len(processes(server, "rh:worker 1")) == 1)
    assert statuses(server, "digits", DIGITS.body) == {200}
    assert not processes(server, "rh:worker 1")
    with suppress(httpx.TransportError):
        server.client.get("/health/live")
    wait_at_rest(server)


def test_sigterm_answers_requests_in_flight(tmp_path: Path) -> None:
    with serving(tmp_path, CONFIG.format(folder=tmp_path)) as server:
        server.wait_ready()
        children = psutil.Process(server.process.pid).children(recursive=True)
        outcomes: list[int] = []

        def ask_on() -> None:
            with httpx.Client(base_url=server.url, timeout=WAIT_S, trust_env=False, verify=False) as client:
                try:
                    while True:
                        outcomes.append(client.post("/models/digits/infer", json=dict(DIGITS.body)).status_code)
                except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):
                    return  # a connection that was idle, or new

        callers = [threading.Thread(target=ask_on) for _ in range(8)]
        for each in callers:
            each.start()
        wait_until(lambda: len(outcomes) > 100)
        server.stop()
        for each in callers:
            each.join()
        assert set(outcomes) <= {200, 503}
        wait_ended(children)


@pytest.mark.extended
def test_killed_supervisor_leaves_no_process(tmp_path: Path) -> None:
    with serving(tmp_path, CONFIG.format(folder=tmp_path)) as server:
        server.wait_ready()
        children = psutil.Process(server.process.pid).children(recursive=True)
        assert len(children) == COUNT + 2
        server.process.kill()
        server.process.wait()
        wait_ended(children)


@pytest.mark.extended
def test_second_signal_ends_all_processes(tmp_path: Path) -> None:
    with serving(tmp_path, CONFIG.format(folder=tmp_path)) as server:
        server.wait_ready()
        children = psutil.Process(server.process.pid).children(recursive=True)
        for each in processes(server, "rh:worker"):
            os.kill(each.pid, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("draining")
        server.process.send_signal(signal.SIGTERM)
        server.wait_stopped(128 + signal.SIGTERM)
        wait_ended(children)
