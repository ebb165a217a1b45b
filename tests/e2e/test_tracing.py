"""Traces of a real server, as a collector on loopback receives them."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.e2e.configs import onnx_entries
from tests.e2e.load import QUESTION, ROW, slow_model, wait_for_inflight
from tests.e2e.server import GRPC_PORT, WAIT_S, RunningServer, free_port, serving, wait_until
from tests.e2e.triton_clients import grpc_channel
from tests.support.models import onnx_graphs
from tests.support.otlp_collector import Collector, attributes, collecting

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PHASES = ["decode", "queue", "compute", "encode"]
NUMBERS = {"input_data": [1.0]}
KEY = "k" * 40


def traceparent(number: int, is_sampled: bool = True) -> str:
    """Return the value of the header in a trace of its own."""
    return f"00-{number:032x}-{SPAN_ID}-0{int(is_sampled)}"


def environ_of(collector: Collector) -> dict[str, str]:
    return {
        GRPC_PORT: free_port(),
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_SERVICE_NAME": "tested",
        "OTEL_BSP_SCHEDULE_DELAY": "20",
    }


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("traces")
    entries = onnx_entries(folder, {"local": onnx_graphs.identity(), "apart": onnx_graphs.identity()})
    entries = entries.replace('name = "apart"\n', 'name = "apart"\nisolation = "process"\n')
    with serving(folder, f'[logging]\nrequests = "all"\n{entries}', environ_of(collector)) as running:
        yield running.wait_ready()


def post(server: RunningServer, model: str, body: object, number: int, is_sampled: bool = True) -> int:
    headers = {"traceparent": traceparent(number, is_sampled)}
    return server.client.post(f"/models/{model}/infer", json=body, headers=headers).status_code


def numbers_message(model: str) -> messages.ModelInferRequest:
    tensor = messages.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1])
    tensor.contents.fp32_contents.append(1.0)
    return messages.ModelInferRequest(model_name=model, inputs=[tensor])


def span_in(collector: Collector, number: int) -> Span:
    """Return the span of the request in a trace."""
    trace_id = number.to_bytes(16)
    wait_until(lambda: any(span.trace_id == trace_id for span in collector.requests()), WAIT_S)
    (found,) = [span for span in collector.requests() if span.trace_id == trace_id]
    return found


@pytest.mark.parametrize(("model", "number"), [("local", 1), ("apart", 2)])
def test_http_request_has_spans(model: str, number: int, server: RunningServer, collector: Collector) -> None:
    assert post(server, model, NUMBERS, number) == 200
    span = span_in(collector, number)
    assert span.name == f"infer {model}"
    assert span.parent_span_id.hex() == SPAN_ID
    found = attributes(span)
    assert found["http.response.status_code"] == 200
    assert (found["roundhouse.model"], found["roundhouse.version"]) == (model, "1")
    assert found["roundhouse.batch_size"] == 1
    children = collector.children(span)
    assert [child.name for child in children] == PHASES
    for child in children:
        assert span.start_time_unix_nano <= child.start_time_unix_nano <= child.end_time_unix_nano
    assert collector.resources[0]["service.name"] == "tested"
    assert server.wait_for_log("request", trace_id=f"{number:032x}")["model"] == model


@pytest.mark.parametrize(("model", "number"), [("local", 11), ("apart", 12)])
def test_request_is_linked_to_batch(model: str, number: int, server: RunningServer, collector: Collector) -> None:
    assert post(server, model, NUMBERS, number) == 200
    span = span_in(collector, number)
    wait_until(partial(has_batch, collector, span), WAIT_S)
    (batch,) = collector.batches(span)
    assert (batch.name, batch.kind, batch.parent_span_id) == (f"batch {model}", Span.SpanKind.SPAN_KIND_INTERNAL, b"")
    assert batch.trace_id != span.trace_id
    assert [(link.trace_id, link.span_id) for link in batch.links] == [(span.trace_id, span.span_id)]
    found = attributes(batch)
    assert (found["roundhouse.model"], found["roundhouse.version"], found["roundhouse.batch_size"]) == (model, "1", 1)
    assert (found["roundhouse.device"], found["roundhouse.instance"]) == ("cpu", 0)
    own = {resource["process.pid"] for resource in collector.resources if resource["service.name"] == "tested"}
    assert (found["process.pid"] in own) == (model == "local")
    # The clocks of the two are the same, the ends of the phases are computed.
    assert span.start_time_unix_nano <= batch.start_time_unix_nano <= batch.end_time_unix_nano
    assert batch.end_time_unix_nano <= span.end_time_unix_nano + 10**8


@pytest.mark.extended
def test_sampled_requests_share_batch_span(tmp_path: Path) -> None:
    entry, gate = slow_model(tmp_path, rows="n")
    with collecting() as collector, serving(tmp_path, entry, environ_of(collector), gated=True) as server:
        server.wait_ready()
        for _ in range(2):  # the cost model expects that batches pay
            server.infer("slow", input_data=[ROW] * 32)
        with ThreadPoolExecutor(4) as pool, gate.closed():
            asked = []
            for number in range(31, 35):
                asked.append(pool.submit(ask, server, number, is_sampled=number != 34))
                wait_for_inflight(server, len(asked))
            wait_until(lambda: server.sample("roundhouse_queue_depth", model="slow") == 3, WAIT_S)
            gate.open()
            assert [each.result() for each in asked] == [200] * 4
        first, *later = (span_in(collector, number) for number in (31, 32, 33))
        wait_until(partial(has_batch, collector, later[0]), WAIT_S)
        (batch,) = collector.batches(later[0])
        assert collector.batches(later[1]) == [batch]
        assert batch not in collector.batches(first)
        assert attributes(batch)["roundhouse.batch_size"] == 3
        linked = {(link.trace_id, link.span_id) for link in batch.links}
        assert linked == {(span.trace_id, span.span_id) for span in later}


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")
def test_workers_link_batch_of_engine_process(tmp_path: Path) -> None:
    entry = slow_model(tmp_path, rows="n")[0] + 'isolation = "process"\nmax_queue_delay_ms = 200\n'
    with (
        collecting() as collector,
        serving(tmp_path, f"[server]\nworkers = 2\n{entry}", environ_of(collector)) as server,
    ):
        server.wait_ready()
        with ThreadPoolExecutor(4) as pool:
            # The kernel chooses the worker of a connection, and the first batches are small.
            for start in range(100, 500, 4):
                numbers = range(start, start + 4)
                asked = [pool.submit(ask, server, each, is_sampled=True) for each in numbers]
                assert [each.result() for each in asked] == [200] * 4
                spans = {span.trace_id: span for span in (span_in(collector, each) for each in numbers)}
                for span in spans.values():
                    wait_until(partial(has_batch, collector, span), WAIT_S)
                batches = [batch for span in spans.values() for batch in collector.batches(span)]
                largest = max(batches, key=lambda batch: len(batch.links))
                assert {link.trace_id for link in largest.links} <= spans.keys()
                workers = {collector.process_of(spans[link.trace_id]) for link in largest.links}
                if len(workers) == 2:
                    break
        assert len(workers) == 2
        assert attributes(largest)["roundhouse.batch_size"] == len(largest.links) >= 2
        assert attributes(largest)["process.pid"] not in workers


def has_batch(collector: Collector, span: Span) -> bool:
    return bool(collector.batches(span))


def ask(server: RunningServer, number: int, is_sampled: bool) -> int:
    """Ask `slow` over a connection of its own."""
    headers = {"traceparent": traceparent(number, is_sampled)}
    url = f"{server.url}/models/slow/infer"
    return httpx.post(url, json=QUESTION, headers=headers, timeout=WAIT_S, trust_env=False, verify=False).status_code


def test_grpc_call_has_spans(server: RunningServer, collector: Collector) -> None:
    request = numbers_message("local")
    with grpc_channel(server) as channel:
        metadata = (("traceparent", traceparent(3)), ("tracestate", "a=1"))
        GRPCInferenceServiceStub(channel).ModelInfer(request, metadata=metadata, timeout=WAIT_S)
    span = span_in(collector, 3)
    assert attributes(span)["rpc.method"] == "inference.GRPCInferenceService/ModelInfer"
    assert span.trace_state == "a=1"
    assert [child.name for child in collector.children(span)] == PHASES


def test_refused_request_has_error_type(server: RunningServer, collector: Collector) -> None:
    assert post(server, "local", {"text": "secret words"}, 4) == 400
    span = span_in(collector, 4)
    assert attributes(span)["error.type"] == "invalid_input"
    assert span.status.code == Status.StatusCode.STATUS_CODE_UNSET
    assert b"secret" not in span.SerializeToString()


def test_clients_sampling_flag_decides(server: RunningServer, collector: Collector) -> None:
    assert post(server, "local", NUMBERS, 5, is_sampled=False) == 200
    assert post(server, "local", NUMBERS, 6) == 200
    span_in(collector, 6)
    assert not [span for span in collector.spans if span.trace_id == (5).to_bytes(16)]
    assert server.wait_for_log("request", trace_id=f"{5:032x}")


def test_malformed_traceparent_begins_new_trace(server: RunningServer, collector: Collector) -> None:
    answer = server.client.post(
        "/models/local/infer", json=NUMBERS, headers={"traceparent": f"00-{TRACE_ID}-0-01", "x-request-id": "bad"}
    )
    assert answer.status_code == 200
    wait_until(lambda: bool(collector.requests(request_id="bad")), WAIT_S)
    (span,) = collector.requests(request_id="bad")
    assert not span.parent_span_id
    assert span.trace_id.hex() != TRACE_ID


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux")
def test_each_worker_exports_at_end(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("workers")
    entries = onnx_entries(folder, {"local": onnx_graphs.identity()})
    with collecting() as collector:
        # Only the end of the workers exports.
        environ = environ_of(collector) | {"OTEL_BSP_SCHEDULE_DELAY": "3600000"}
        with serving(folder, f"[server]\nworkers = 2\n{entries}", environ) as server:
            server.wait_ready()
            for _ in range(16):
                with httpx.Client(base_url=server.url, timeout=WAIT_S, trust_env=False, verify=False) as client:
                    assert client.post("/models/local/infer", json=NUMBERS).status_code == 200
        assert len(collector.requests(model="local")) == 16
        assert len({resource["process.pid"] for resource in collector.resources}) == 2


@pytest.mark.extended
def test_absent_collector_costs_one_log_line(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("absent")
    entries = onnx_entries(folder, {"local": onnx_graphs.identity()})
    environ = environ_of(Collector(f"http://127.0.0.1:{free_port()}")) | {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"}
    with serving(folder, entries, environ) as server:
        server.wait_ready()
        for lost in (1, 2):
            server.infer("local", **NUMBERS)
            wait_until(partial(_has_lost, server, lost), WAIT_S)
        server.stop()
    assert len(server.events("traces not exported")) == 1
    assert not [line for line in server.lines if "Transient error" in line]


def _has_lost(server: RunningServer, requests: int) -> bool:
    return server.sample("roundhouse_traces_dropped_total") == requests


@pytest.mark.extended
def test_key_checks_are_in_traces(collector: Collector, tmp_path: Path) -> None:
    entries = onnx_entries(tmp_path, {"keyed": onnx_graphs.identity()})
    with serving(tmp_path, entries, environ_of(collector) | {"ROUNDHOUSE_API_KEY": KEY}) as server:
        wait_until(lambda: server.client.get("/health/ready").status_code == 200, WAIT_S)
        for number, given in ((21, KEY), (22, "another")):
            headers = {"authorization": f"Bearer {given}", "traceparent": traceparent(number)}
            server.client.post("/models/keyed/infer", json=NUMBERS, headers=headers)
        server.client.get("/models", headers={"traceparent": traceparent(23)})
        request, metadata = numbers_message("keyed"), (("traceparent", traceparent(24)),)
        keyed = (("traceparent", traceparent(25)), ("x-api-key", KEY))
        with grpc_channel(server) as channel:
            infer = GRPCInferenceServiceStub(channel).ModelInfer
            with pytest.raises(grpc.RpcError):
                infer(request, metadata=metadata, timeout=WAIT_S)
            infer(request, metadata=keyed, timeout=WAIT_S)
        answered, refused, refused_call, call = (span_in(collector, number) for number in (21, 22, 24, 25))
    for each in (answered, call):
        children = collector.children(each)
        assert [child.name for child in children] == ["authenticate", *PHASES]
        assert each.start_time_unix_nano <= children[0].start_time_unix_nano <= children[0].end_time_unix_nano
    assert [child.name for child in collector.children(refused_call)] == ["authenticate"]
    assert [attributes(each)["error.type"] for each in (refused, refused_call)] == ["unauthenticated"] * 2
    # A refused management request has no span.
    assert not [span for span in collector.spans if span.trace_id == (23).to_bytes(16)]
    assert not [span for span in collector.spans if KEY.encode() in span.SerializeToString()]
