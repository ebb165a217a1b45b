"""gRPC streams, and calls under cancellation, overload, deadlines and drain."""

import queue
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.e2e.configs import onnx_entries
from tests.e2e.gates import RunGate
from tests.e2e.load import occupy_worker, slow_model, wait_for_done, wait_for_drain, wait_for_inflight
from tests.e2e.server import GRPC_PORT, WAIT_S, RunningServer, free_port, serving, wait_until
from tests.e2e.triton_clients import grpc_channel, grpc_tensor, refusal, string_array, triton_client
from tests.support.models import onnx_graphs

PROMPT = "A list is"


@pytest.fixture
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc_channel(server) as channel:
        yield channel


class TestStream:
    def test_stream_mixes_texts_tensors_and_errors(self, server: RunningServer) -> None:
        responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
        options = {"max_tokens": 24, "temperature": 0}
        with triton_client(server, "grpc") as client:
            client.start_stream(lambda result, error: responses.put((result, error)))
            prompt = [grpc_tensor("text_input", string_array(PROMPT), "BYTES")]
            client.async_stream_infer("tiny-llama", prompt, request_id="text", parameters=options)
            client.async_stream_infer("nothing", prompt, request_id="error")
            for i in range(20):
                given = [grpc_tensor("x", np.array([i], np.float32), "FP32")]
                client.async_stream_infer("float32", given, request_id=f"tensor {i}")
            pieces: list[str] = []
            tensors: list[float] = []
            errors: list[str] = []
            is_whole = False
            while not (is_whole and len(tensors) == 20 and errors):
                result, error = responses.get(timeout=WAIT_S)
                if error is not None:
                    errors.append(str(error))
                    continue
                response = result.get_response()
                if response.id == "text":
                    pieces.append(result.as_numpy("text_output")[0].decode())
                    is_whole = response.parameters["triton_final_response"].bool_param
                else:
                    tensors.append(float(result.as_numpy("y")[0]))
            client.stop_stream()
        assert len(pieces) > 3
        assert "".join(pieces) == server.infer("tiny-llama", prompt=PROMPT, **options)["text"]
        assert tensors == list(range(20))
        assert len(errors) == 1
        assert "nothing" in errors[0]

    def test_stream_parameter_off_gives_one_response(self, channel: grpc.Channel, server: RunningServer) -> None:
        request = text_request(max_tokens=8)
        flag = request.inputs.add(name="stream", datatype="BOOL", shape=[1])
        flag.contents.bool_contents.append(False)
        (response,) = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request]))
        (text,) = response.infer_response.outputs[0].contents.bytes_contents
        assert text.decode() == server.infer("tiny-llama", prompt=PROMPT, max_tokens=8, temperature=0)["text"]

    def test_cancelled_stream_frees_sequence(self, channel: grpc.Channel, server: RunningServer) -> None:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        never = threading.Event()

        def requests() -> Iterator[Any]:
            yield text_request(max_tokens=400, ignore_eos=True)
            never.wait(WAIT_S)

        stream = stub.ModelStreamInfer(requests())
        assert next(stream).infer_response.outputs
        assert server.sample("roundhouse_sequences", model="tiny-llama", state="running") == 1
        stream.cancel()
        wait_until(lambda: server.sample("roundhouse_sequences", model="tiny-llama", state="running") == 0)
        wait_until(lambda: server.sample("roundhouse_inflight") == 0)
        never.set()


def text_request(**options: Any) -> Any:
    request = service_pb2.ModelInferRequest(model_name="tiny-llama", id="text")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(PROMPT.encode())
    request.parameters["temperature"].int64_param = 0
    for name, value in options.items():
        setattr(request.parameters[name], "bool_param" if isinstance(value, bool) else "int64_param", value)
    return request


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, RunGate]]:
    """Start a server whose model `slow` queues one request, and return its gate."""
    folder = tmp_path_factory.mktemp("gated")
    entry, gate = slow_model(folder)
    config = f"{entry}max_queue_size = 1\n[server]\nmax_body_bytes = 100_000\n"
    with serving(folder, config, {GRPC_PORT: free_port()}, gated=True) as server:
        yield server.wait_ready(), gate


class TestBounds:
    @staticmethod
    def ask(server: RunningServer, **options: Any) -> Any:
        with triton_client(server, "grpc") as client:
            return client.infer("slow", [grpc_tensor("x", np.ones((1, 4), np.float32), "FP32")], **options)

    def test_overload_is_resource_exhausted(self, gated: tuple[RunningServer, RunGate]) -> None:
        server, gate = gated
        with ThreadPoolExecutor(8) as many, gate.closed():
            asked = occupy_worker(server, lambda: many.submit(self.ask, server))
            asked += [many.submit(self.ask, server) for _ in range(6)]
            # One runs, one is next, one waits.
            wait_for_done(asked, 5)
            gate.open()
            outcomes = [each.exception() for each in asked]
        refused = [str(each) for each in outcomes if each is not None]
        assert len(refused) == 5
        assert all("[StatusCode.RESOURCE_EXHAUSTED]" in each and "max_queue_size" in each for each in refused)

    def test_deadline_of_call_reaches_queue(self, gated: tuple[RunningServer, RunGate]) -> None:
        server, gate = gated
        with ThreadPoolExecutor(2) as many, gate.closed():
            first = many.submit(self.ask, server)
            wait_for_inflight(server, 1)
            with refusal("DEADLINE_EXCEEDED"):
                self.ask(server, client_timeout=0.05)
            wait_for_inflight(server, 1)
            gate.open()
            assert first.exception() is None
        wait_for_inflight(server, 0)

    def test_timeout_parameter_is_deadline(self, gated: tuple[RunningServer, RunGate]) -> None:
        server, gate = gated
        with gate.closed(), refusal("DEADLINE_EXCEEDED", "timeout_ms"):
            self.ask(server, timeout=1000)
        wait_for_inflight(server, 0)

    def test_message_beyond_max_body_bytes(self, gated: tuple[RunningServer, RunGate]) -> None:
        large = grpc_tensor("x", np.ones((10_000, 4), np.float32), "FP32")
        with triton_client(gated[0], "grpc") as client, refusal("RESOURCE_EXHAUSTED"):
            client.infer("slow", [large])

    def test_long_management_message_refused(self, gated: tuple[RunningServer, RunGate]) -> None:
        with triton_client(gated[0], "grpc") as client, refusal("RESOURCE_EXHAUSTED", "65536 bytes"):
            client.get_model_metadata("m" * 65_537)

    def test_drain_answers_requests_in_flight(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("drain")
        entry, gate = slow_model(folder)
        with ThreadPoolExecutor(1) as one, serving(folder, entry, {GRPC_PORT: free_port()}, gated=True) as server:
            server.wait_ready()
            with grpc_channel(server) as idle, gate.closed():
                watching = health_pb2_grpc.HealthStub(idle).Watch(health_pb2.HealthCheckRequest())
                next(watching)
                in_flight = one.submit(self.ask, server)
                wait_for_inflight(server, 1)
                server.process.send_signal(signal.SIGTERM)
                wait_for_drain(server)
                gate.open()
                server.wait_stopped(0)
                assert in_flight.exception() is None

    def test_grpc_and_rest_share_batches(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = tmp_path_factory.mktemp("shared")
        entry = onnx_entries(folder, {"one": onnx_graphs.identity("float32", ("n", 4))}) + "max_queue_delay_ms = 300\n"
        with serving(folder, entry, {GRPC_PORT: free_port()}) as server, ThreadPoolExecutor(2) as both:
            server.wait_ready()
            rounds = 0
            # Larger batches are tried when smaller ones have run, and both requests must arrive within the delay.
            while rounds < 6 or server.sample("roundhouse_batch_size_count", model="one") == 2 * rounds:
                rounds += 1
                assert rounds < 100
                one = both.submit(server.infer, "one", input_data=[1, 2, 3, 4])
                with triton_client(server, "grpc") as client:
                    answer = client.infer("one", [grpc_tensor("x", np.full((1, 4), 7, np.float32), "FP32")])
                assert one.result()["output_data"] == [1, 2, 3, 4]
                assert answer.as_numpy("y").tolist() == [[7] * 4]
            assert server.sample("roundhouse_batch_size_sum", model="one") == 2 * rounds
