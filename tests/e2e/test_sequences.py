"""Sequences of requests to models with a state: over each protocol, in a process, with workers, of several tenants."""

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from frameworks.types import Array
from tests.e2e.configs import onnx_entries
from tests.e2e.engines import engine, kill, wait_for_restart
from tests.e2e.server import GRPC_PORT, WAIT_S, RunningServer, assert_refused, free_port, serving, wait_until
from tests.support.keyring import make_key, write_keys
from tests.support.models import onnx_graphs, onnx_recurrent
from tests.support.models.onnx_recurrent import INPUTS, Loop

GRAPH = onnx_recurrent.lstm()
STEPS = 6
assert_close = partial(np.testing.assert_allclose, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("sequences")
    config = onnx_entries(folder, {"plain": onnx_graphs.identity()})
    config += onnx_entries(folder, {"lstm": GRAPH}) + 'state = "auto"\n'
    config += onnx_entries(folder, {"isolated": GRAPH}) + 'isolation = "process"\n'
    config += '[[models.onnx_models.state]]\ninput = "state"\noutput = "stateN"\n'
    with serving(folder, config, {GRPC_PORT: free_port()}) as running:
        yield running.wait_ready()
        running.check_log()


def steps_of(seed: int, count: int = STEPS) -> list[Array]:
    """Return the inputs of a sequence, float32 [1, 4] each."""
    random = np.random.default_rng(seed)
    return [random.random((1, INPUTS), np.float32) for _ in range(count)]


def expected(steps: Sequence[Array]) -> list[float]:
    loop = Loop(GRAPH)
    return [float(loop.step({"x": step})[0, 0]) for step in steps]


def step(server: RunningServer, model: str, number: int | str, x: Array, **flags: bool) -> httpx.Response:
    body = {"input_data": x.tolist(), "sequence": {"id": number, **flags}}
    return server.client.post(f"/models/{model}/infer", json=body)


def run(server: RunningServer, model: str, number: int | str, steps: Sequence[Array]) -> list[float]:
    """Return the answers to a whole sequence."""
    answers = [step(server, model, number, x, start=at == 0, end=at == len(steps) - 1) for at, x in enumerate(steps)]
    assert {answer.status_code for answer in answers} == {200}, answers[0].text
    return [answer.json()["output_data"][0][0] for answer in answers]


def use_of(server: RunningServer, model: str) -> dict[str, Any]:
    details = server.client.get(f"/models/{model}").json()["version_details"]
    return cast(dict[str, Any], details["1"]["sequences"])


@pytest.mark.parametrize("model", ["lstm", "isolated"])
def test_concurrent_sequences_equal_plain_loops(server: RunningServer, model: str) -> None:
    inputs = {number: steps_of(number) for number in range(1, 17)}
    with ThreadPoolExecutor(len(inputs)) as pool:
        answers = pool.map(lambda each: run(server, model, *each), inputs.items())
    for got, steps in zip(answers, inputs.values(), strict=True):
        assert_close(got, expected(steps))
    wait_until(lambda: use_of(server, model)["count"] == 0)


def over_http(server: RunningServer, number: int | str, steps: Sequence[Array]) -> list[float]:
    with triton_http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        results = []
        for at, x in enumerate(steps):
            tensor = triton_http.InferInput("x", x.shape, "FP32")
            tensor.set_data_from_numpy(x)
            results.append(client.infer("lstm", [tensor], **flags_of(number, at, steps)))
        return [float(result.as_numpy("prob")[0, 0]) for result in results]


def over_grpc(server: RunningServer, number: int | str, steps: Sequence[Array]) -> list[float]:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        results = [client.infer("lstm", [grpc_input(x)], **flags_of(number, at, steps)) for at, x in enumerate(steps)]
        return [float(result.as_numpy("prob")[0, 0]) for result in results]


def over_stream(server: RunningServer, number: int | str, steps: Sequence[Array]) -> list[float]:
    """Send all steps before the first answer is read, as the example of tritonclient does."""
    received: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        client.start_stream(lambda result, error: received.put((result, error)))
        for at, x in enumerate(steps):
            client.async_stream_infer("lstm", [grpc_input(x)], request_id=str(at), **flags_of(number, at, steps))
        got = [received.get(timeout=WAIT_S) for _ in steps]
        client.stop_stream()
    assert [error for _, error in got] == [None] * len(steps)
    assert [result.get_response().id for result, _ in got] == [str(at) for at in range(len(steps))]
    return [float(result.as_numpy("prob")[0, 0]) for result, _ in got]


def test_stream_keeps_order_of_long_and_short_steps(tmp_path: Path) -> None:
    graph = onnx_recurrent.running_sum()
    config = onnx_entries(tmp_path, {"sum": graph}) + 'state = "auto"\n'
    rows = 512 * 1024
    with serving(tmp_path, config, {GRPC_PORT: free_port()}) as running:
        running.wait_ready()
        received: queue.Queue[tuple[Any, Any]] = queue.Queue()
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{running.grpc_port}") as client:
            client.start_stream(lambda result, error: received.put((result, error)))
            # Refused at its turn by its number of rows; a step that overtakes another has no sequence.
            for at, count in enumerate((rows, 1, rows)):
                tensor = grpc_input(np.ones((count, 1), np.float32))
                client.async_stream_infer("sum", [tensor], sequence_id=5, sequence_start=at == 0)
            got = [received.get(timeout=WAIT_S) for _ in range(3)]
            client.stop_stream()
        [error] = [str(error) for _, error in got if error is not None]
        assert f"expected {rows} rows" in error
        sums = [result.as_numpy("sum") for result, error in got if error is None]
        assert [int(each[-1, 0]) for each in sums] == [1, 2]


def grpc_input(x: Array) -> Any:
    tensor = triton_grpc.InferInput("x", x.shape, "FP32")
    tensor.set_data_from_numpy(x)
    return tensor


def flags_of(number: int | str, at: int, steps: Sequence[Array]) -> dict[str, Any]:
    return {"sequence_id": number, "sequence_start": at == 0, "sequence_end": at == len(steps) - 1}


Client = Callable[[RunningServer, int | str, Sequence[Array]], list[float]]


@pytest.mark.parametrize(
    ("client", "number"),
    [
        (over_http, 2**64 - 1),
        (over_http, "a name"),
        (over_grpc, 2**63 - 1),
        (over_grpc, "a name"),
        (over_stream, 1001),
        (over_stream, "another"),
    ],
)
def test_triton_client_sequence_equals_plain_loop(server: RunningServer, client: Client, number: int | str) -> None:
    steps = steps_of(7, 20)
    assert_close(client(server, number, steps), expected(steps))


def test_triton_client_without_sequence_is_refused(server: RunningServer) -> None:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        with pytest.raises(InferenceServerException, match="sequence_id: expected the sequence") as raised:
            client.infer("lstm", [grpc_input(steps_of(1)[0])])
        assert raised.value.status() == "StatusCode.INVALID_ARGUMENT"
        with pytest.raises(InferenceServerException, match="expected start") as raised:
            client.infer("lstm", [grpc_input(steps_of(1)[0])], sequence_id=404)
        assert raised.value.status() == "StatusCode.NOT_FOUND"


@pytest.mark.parametrize(
    ("model", "body", "words"),
    [
        ("lstm", {}, ("sequence: expected the sequence", "send its id and start")),
        ("lstm", {"sequence": 5}, ("sequence: expected an object",)),
        ("lstm", {"sequence": {"start": True}}, ("sequence.id: expected an integer", "got nothing")),
        ("lstm", {"sequence": {"id": 0}}, ("sequence.id: expected an integer from 1",)),
        ("lstm", {"sequence": {"id": 2**64}}, ("sequence.id",)),
        ("lstm", {"sequence": {"id": "x" * 129}}, ("sequence.id", "129 characters")),
        ("lstm", {"sequence": {"id": 1, "start": 1}}, ("sequence.start: expected true or false",)),
        ("plain", {"sequence": {"id": 1}}, ("sequence: expected none for a model without a state",)),
    ],
)
def test_invalid_sequence_is_refused(
    server: RunningServer, model: str, body: Mapping[str, object], words: Sequence[str]
) -> None:
    inputs = {"lstm": [[0.0] * INPUTS], "plain": [0.0]}
    answer = server.client.post(f"/models/{model}/infer", json={"input_data": inputs[model], **body})
    assert_refused(answer, 400, "invalid_input", *words)


def test_unknown_field_of_sequence_is_refused(server: RunningServer) -> None:
    body = {"input_data": [[0.0] * INPUTS], "sequence": {"id": 1, "begin": True}}
    assert_refused(server.client.post("/models/lstm/infer", json=body), 400, "unknown_field", "sequence.begin")


def test_state_input_is_no_input(server: RunningServer) -> None:
    described = server.client.get("/models/lstm").json()
    assert [each["name"] for each in described["inputs"]] == ["x"]
    assert [each["name"] for each in described["outputs"]] == ["prob"]
    tensor = {"name": "state", "shape": [2, 1, 6], "datatype": "FP32", "data": [0.0] * 12}
    answer = server.client.post("/v2/models/lstm/infer", json={"inputs": [tensor]})
    assert answer.status_code == 400


def test_description_shows_states_and_sequences(server: RunningServer) -> None:
    steps = steps_of(3)
    assert step(server, "isolated", "shown", steps[0], start=True).status_code == 200
    wait_until(lambda: use_of(server, "isolated")["count"] == 1)
    use = use_of(server, "isolated")
    pair = {"input": "state", "output": "stateN", "dtype": "float32", "shape": [2, -1, 6], "batch_axis": 1}
    assert use["states"] == [pair]
    assert use["bytes"] == server.sample("roundhouse_state_bytes", model="isolated") > 0
    assert server.sample("roundhouse_state_sequences", model="isolated") == 1
    assert (use["max_bytes"], use["idle_timeout_s"]) == (64 * 1024**2, 60.0)
    assert server.client.get("/models/plain").json()["version_details"]["1"]["sequences"] is None
    assert step(server, "isolated", "shown", steps[1], end=True).status_code == 200
    wait_until(lambda: server.sample("roundhouse_state_sequences", model="isolated") == 0)


def test_triton_configuration_has_sequence_batching(server: RunningServer) -> None:
    configuration = server.client.get("/v2/models/lstm/config").json()
    assert "dynamic_batching" not in configuration
    state = {"input_name": "state", "output_name": "stateN", "data_type": "TYPE_FP32", "dims": [2, -1, 6]}
    batching = configuration["sequence_batching"]
    assert (batching["max_sequence_idle_microseconds"], batching["state"]) == (60_000_000, [state])
    assert "sequence_batching" not in server.client.get("/v2/models/plain/config").json()
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        assert client.get_model_config("lstm").config.name == "lstm"


def test_model_memory_includes_state_bound(server: RunningServer) -> None:
    for model in ("lstm", "isolated"):
        assert server.sample("roundhouse_model_memory_bytes", model=model) >= 64 * 1024**2


def test_killed_process_loses_sequence(server: RunningServer) -> None:
    steps = steps_of(4)
    assert step(server, "isolated", 41, steps[0], start=True).status_code == 200
    before = engine(server, "isolated")
    kill(server, "isolated")
    wait_for_restart(server, "isolated", before)
    assert_refused(step(server, "isolated", 41, steps[1]), 410, "sequence_lost", "41", "begin it again with start")
    # A sequence of the new process is none of the lost ones.
    assert_close(run(server, "isolated", 41, steps), expected(steps))
    assert_refused(step(server, "isolated", 41, steps[1]), 404, "sequence_not_found", "41")


def test_reload_loses_sequence(server: RunningServer) -> None:
    x = steps_of(5)[0]
    assert_refused(step(server, "lstm", "new", x), 404, "sequence_not_found", '"new"', "without a step for 60 s")
    assert step(server, "lstm", "kept", x, start=True).status_code == 200
    for order in ("unload", "load"):
        assert server.client.post(f"/models/lstm/{order}").status_code == 200
    assert_refused(step(server, "lstm", "kept", x), 410, "sequence_lost", '"kept"')
    body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0.0] * 4}]}
    body["parameters"] = {"sequence_id": "kept"}  # type: ignore[assignment]
    answer = server.client.post("/v2/models/lstm/infer", json=body)
    assert (answer.status_code, "sequence_id" in answer.json()["error"]) == (410, True)


def test_canary_of_model_with_state_is_refused(tmp_path: Path) -> None:
    for version in ("1", "2"):
        (tmp_path / "lstm" / version).mkdir(parents=True)
        onnx_graphs.save(GRAPH, tmp_path / "lstm" / version)
    config = f'[[models.onnx_models]]\nname = "lstm"\npath = "{tmp_path / "lstm"}"\nstate = "auto"\n'
    with serving(tmp_path, config) as running:
        running.wait_ready()
        answer = running.client.post("/models/lstm/load", json={"canary": {"version": "1", "percent": 50}})
        assert_refused(answer, 400, "invalid_input", "canary", "without a state")


def test_workers_share_sequences(tmp_path: Path) -> None:
    config = "[server]\nworkers = 2\n" + onnx_entries(tmp_path, {"lstm": GRAPH}) + 'state = "auto"\n'
    with serving(tmp_path, config) as running:
        running.wait_ready()
        steps = steps_of(6, 16)
        got = []
        for at, x in enumerate(steps):
            # Each connection is given to one of the workers.
            with httpx.Client(base_url=running.url, timeout=WAIT_S, trust_env=False, verify=False) as client:
                body = {"input_data": x.tolist(), "sequence": {"id": 1, "start": at == 0}}
                answer = client.post("/models/lstm/infer", json=body)
                assert answer.status_code == 200, answer.text
                got.append(answer.json()["output_data"][0][0])
        assert_close(got, expected(steps))
        wait_until(lambda: running.sample("roundhouse_state_sequences", model="lstm") == 1)


def test_tenants_have_sequences_of_their_own(tmp_path: Path) -> None:
    operator, red, blue = make_key("ops"), make_key("red"), make_key("blue")
    write_keys(tmp_path / "keys.toml", operator, red, blue)
    config = onnx_entries(tmp_path, {"lstm": GRAPH}) + 'state = "auto"\n[auth]\nmode = "required"\n'
    for name, more in (("ops", "operator = true\n"), ("red", ""), ("blue", "")):
        config += f'[[auth.tenants]]\nname = "{name}"\n{more}'
    with serving(tmp_path, config) as running:
        wait_until(lambda: running.client.get("/health/ready").status_code == 200)

        def send(key: Any, x: Array, **flags: bool) -> httpx.Response:
            body = {"input_data": x.tolist(), "sequence": {"id": 1, **flags}}
            return running.client.post("/models/lstm/infer", json=body, headers=key.headers)

        def count(key: Any) -> int:
            detail = running.client.get("/models/lstm", headers=key.headers).json()
            return int(detail["version_details"]["1"]["sequences"]["count"])

        steps = steps_of(8)
        outcome = expected(steps)
        assert send(red, steps[0], start=True).status_code == 200
        assert_refused(send(blue, steps[1], end=True), 404, "sequence_not_found")
        assert [count(red), count(blue), count(operator)] == [1, 0, 1]
        assert send(blue, steps[3], start=True, end=True).status_code == 200
        answer = send(red, steps[1], end=True)
        assert_close(answer.json()["output_data"], [[outcome[1]]])
        assert [count(red), count(blue), count(operator)] == [0, 0, 0]
