"""/health for operators and supervisors, /metrics for Prometheus."""

import json
import math
import time
from itertools import pairwise
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.configs import DIGITS, onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.load import QUESTION, ROW, callers, slow_model, wait_for_inflight
from tests.e2e.server import RunningServer, wait_until
from tests.support.models import onnx_graphs

FAMILIES = {
    "roundhouse_requests": "counter",
    "roundhouse_rejected": "counter",
    "roundhouse_auth_failures": "counter",
    "roundhouse_auth_keys": "gauge",
    "roundhouse_auth_key_reloads": "counter",
    "roundhouse_tenant_inflight": "gauge",
    "roundhouse_tls_certificate_expiry_timestamp_seconds": "gauge",
    "roundhouse_tls_reloads": "counter",
    "roundhouse_collection_requests": "counter",
    "roundhouse_collection_seconds": "histogram",
    "roundhouse_collection_rows": "gauge",
    "roundhouse_collection_bytes": "gauge",
    "roundhouse_collection_queries": "counter",
    "roundhouse_collection_batches": "counter",
    "roundhouse_collection_waiting": "gauge",
    "roundhouse_pipeline_step_seconds": "histogram",
    "roundhouse_inflight": "gauge",
    "roundhouse_queue_depth": "gauge",
    "roundhouse_queue_limit": "gauge",
    "roundhouse_model_state": "gauge",
    "roundhouse_model_memory_bytes": "gauge",
    "roundhouse_model_loads": "counter",
    "roundhouse_model_evictions": "counter",
    "roundhouse_download_bytes": "counter",
    "roundhouse_engine_restarts": "counter",
    "roundhouse_engine_processes": "gauge",
    "roundhouse_engine_shared_memory_bytes": "gauge",
    "roundhouse_model_budget_bytes": "gauge",
    "roundhouse_shadow_requests": "counter",
    "roundhouse_integrity_failures": "counter",
    "roundhouse_log_lines_dropped": "counter",
    "roundhouse_traces_dropped": "counter",
    "roundhouse_workers": "gauge",
    "roundhouse_worker_restarts": "counter",
    "roundhouse_connections_closed": "counter",
    "roundhouse_connections": "gauge",
    "roundhouse_buffered_bytes": "gauge",
    "roundhouse_request_seconds": "histogram",
    "roundhouse_queue_seconds": "histogram",
    "roundhouse_compute_seconds": "histogram",
    "roundhouse_batch_size": "histogram",
    "roundhouse_batches_split": "counter",
    "roundhouse_tenant_device_seconds": "counter",
    "roundhouse_tokens_generated": "counter",
    "roundhouse_prompt_tokens": "counter",
    "roundhouse_prefix_cache_hit_tokens": "counter",
    "roundhouse_preemptions": "counter",
    "roundhouse_proposed_tokens": "counter",
    "roundhouse_accepted_tokens": "counter",
    "roundhouse_sequences": "gauge",
    "roundhouse_state_sequences": "gauge",
    "roundhouse_state_bytes": "gauge",
    "roundhouse_kv_cache_bytes": "gauge",
    "roundhouse_time_to_first_token_seconds": "histogram",
    "roundhouse_inter_token_seconds": "histogram",
    "roundhouse_cache_hits": "counter",
    "roundhouse_cache_misses": "counter",
    "roundhouse_cache_bytes": "gauge",
    "roundhouse_cache_evictions": "counter",
    "roundhouse_tensor_pool_bytes": "gauge",
    "roundhouse_tensor_pool_hits": "counter",
    "roundhouse_tensor_pool_misses": "counter",
    "roundhouse_gc_runs": "counter",
    "roundhouse_gc_freed_bytes": "counter",
    "roundhouse_event_loop_lag_seconds": "histogram",
    "roundhouse_device_memory_bytes": "gauge",
}
HISTOGRAMS = [f"roundhouse_{part}_seconds" for part in ("request", "queue", "compute")]
"""Those of each model."""


def test_health_of_ready_server(server: RunningServer) -> None:
    health = server.client.get("/health").json()
    assert health.keys() == {
        *("status", "models", "progress", "metrics", "devices", "max_connections", "uptime_seconds"),
    }
    # Kernels may still be compiled.
    assert {each["kind"] for each in health["progress"]} <= {"compile"}
    assert health["status"] == "healthy"
    assert set(health["models"].values()) == {"ready"}
    assert health["metrics"].keys() >= {"requests_total", "requests_failed_total", "inflight", "models_ready"}
    assert health["metrics"]["models_ready"] == len(health["models"])
    (cpu,) = [device for device in health["devices"] if device["id"] == "cpu"]
    assert cpu["total_bytes"] >= cpu["free_bytes"] > 0
    assert 0 < health["max_connections"] <= 20_000
    later = server.client.get("/health").json()
    assert later["uptime_seconds"] > health["uptime_seconds"] > 0
    assert server.client.get("/health/live").json() == {"status": "live"}
    assert server.client.get("/health/ready").json() == {"status": "ready"}


def test_failed_model_leaves_others_serving(start: Start) -> None:
    missing = '[[models.onnx_models]]\nname = "missing"\npath = "./nowhere"\n'
    server = start(missing + DIGITS)
    wait_until(lambda: server.client.get("/models/digits").json()["state"] == "ready")
    health = server.client.get("/health")
    assert (health.status_code, health.json()["status"]) == (200, "degraded")
    assert health.json()["models"] == {"missing": "failed", "digits": "ready"}
    ready = server.client.get("/health/ready")
    assert ready.status_code == 503
    assert ready.json() == {"status": "degraded", "waits_for": ["missing"]}
    assert server.infer("digits", input_data=[0] * 64)["output_shape"] == [1]
    assert "no such file or folder" in server.client.get("/models/missing").json()["reason"]
    answer = server.client.post("/models/missing/infer", json={"input_data": [1]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_failed")
    server.wait_for_log("model failed to load", model="missing", level="error")
    # A caller that takes the failed model away has a server that is whole again.
    assert server.client.delete("/models/missing").status_code == 200
    assert server.client.get("/health/ready").status_code == 200
    assert server.client.get("/health").json()["status"] == "healthy"


def test_families_have_names_and_types(server: RunningServer) -> None:
    page = server.client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(page.text))
    assert {family.name: family.type for family in families} == FAMILIES
    assert len(families) == len(FAMILIES)
    for family in families:
        assert family.documentation
        assert len({(s.name, tuple(sorted(s.labels.items()))) for s in family.samples}) == len(family.samples)


def test_requests_counted_by_model_version_status(server: RunningServer) -> None:
    def count(**labels: str) -> float:
        return server.sample("roundhouse_requests_total", **labels)

    before = [count(model="int16", version="1", code=code) for code in ("200", "400")] + [count(model="", code="404")]
    for _ in range(3):
        server.infer("int16", input_data=[1])
    server.client.post("/models/int16/infer", json={"input_data": [2**20]})
    server.client.post("/models/int17/infer", json={"input_data": [1]})
    after = [count(model="int16", version="1", code=code) for code in ("200", "400")] + [count(model="", code="404")]
    assert [a - b for a, b in zip(after, before, strict=True)] == [3, 1, 1]


def test_unknown_model_names_create_no_series(server: RunningServer) -> None:
    for i in range(20):
        server.client.post(f"/models/made-up-{i}/infer", json={"input_data": [1]})
        server.client.post(f"/models/int16/versions/{i + 2}/infer", json={"input_data": [1]})
    assert "made-up" not in server.client.get("/metrics").text
    versions = {s.labels["version"] for s in server.metrics()["roundhouse_requests"].samples}
    assert versions <= {"", "1"}


def test_histograms_are_consistent(server: RunningServer) -> None:
    for _ in range(5):
        server.infer("int16", input_data=[1])
    answered = server.sample("roundhouse_requests_total", model="int16", code="200")
    for name in HISTOGRAMS:
        samples = [s for s in server.metrics()[name].samples if s.labels["model"] == "int16"]
        buckets = sorted((float(s.labels["le"]), s.value) for s in samples if s.name == f"{name}_bucket")
        (count,) = [s.value for s in samples if s.name == f"{name}_count"]
        (total,) = [s.value for s in samples if s.name == f"{name}_sum"]
        values = [value for _, value in buckets]
        assert buckets[-1][0] == math.inf
        assert values == sorted(values)
        assert values[-1] == count == answered
        assert 0 <= total <= count * server.client.get("/health").json()["uptime_seconds"]
        # The sum cannot be below what the buckets themselves say.
        lower = sum(bound * (after - before) for (bound, before), (_, after) in pairwise(buckets))
        assert total >= lower


def test_event_loop_lag_is_measured(server: RunningServer) -> None:
    """An idle server measures it four times a second."""
    before = server.sample("roundhouse_event_loop_lag_seconds_count")
    wait_until(lambda: server.sample("roundhouse_event_loop_lag_seconds_count") > before)
    samples = server.metrics()["roundhouse_event_loop_lag_seconds"].samples
    buckets = [s.value for s in samples if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    # All of one page: the counter moves between two.
    (count,) = [s.value for s in samples if s.name.endswith("_count")]
    assert buckets[-1] == count > before
    assert sum(s.value for s in samples if s.name.endswith("_sum")) >= 0


def test_batch_sizes_count_rows(server: RunningServer) -> None:
    def counts() -> list[float]:
        return [server.sample(f"roundhouse_batch_size_{part}", model="digits", **labels) for part, labels in parts]

    parts: list[tuple[str, dict[str, str]]] = [("count", {}), ("sum", {})]
    parts += [("bucket", {"le": bound}) for bound in ("2", "4", "+Inf")]
    before = counts()
    server.infer("digits", input_data=[[0] * 64] * 3)
    assert [after - was for after, was in zip(counts(), before, strict=True)] == [1, 3, 0, 1, 1]


def test_gauges_show_models_and_devices(server: RunningServer) -> None:
    assert server.sample("roundhouse_model_state", model="digits", state="ready") == 1
    states = [s for s in server.metrics()["roundhouse_model_state"].samples if s.labels["model"] == "digits"]
    assert len(states) == 6
    assert sum(s.value for s in states) == 1
    # With AMX a weight of float32 may take 6 bytes.
    assert 85e6 < server.sample("roundhouse_model_memory_bytes", model="minilm") < 180e6
    assert server.sample("roundhouse_model_loads_total", model="digits") == 1
    assert server.sample("roundhouse_inflight") == 0
    assert server.sample("roundhouse_queue_depth") == 0
    total = server.sample("roundhouse_device_memory_bytes", device="cpu", kind="total")
    assert total >= server.sample("roundhouse_device_memory_bytes", device="cpu", kind="free") > 0


def test_queue_limits_are_shown(start: Start) -> None:
    """Of all models together, and of those that have one of their own."""
    unbounded = DIGITS.replace('"digits"', '"digits-2"', 1)
    server = start(f"{DIGITS}max_queue_size = 3\n{unbounded}[scheduling]\nmax_queue_size = 70\n")
    samples = server.metrics()["roundhouse_queue_limit"].samples
    assert {sample.labels["model"]: sample.value for sample in samples} == {"": 70, "digits": 3}


def test_tensor_pool_hits_are_counted(start: Start, tmp_path: Path) -> None:
    width = 2**20 + 1
    graphs = {"wide": onnx_graphs.identity("float32", ("n", width))}
    server = start("[memory]\ngc_threshold = 0.5\n" + onnx_entries(tmp_path, graphs)).wait_ready()

    def figures() -> list[float]:
        names = ("tensor_pool_hits_total", "tensor_pool_misses_total", "gc_runs_total", "gc_freed_bytes_total")
        return [server.sample(f"roundhouse_{name}") for name in names]

    def leased() -> float:
        return server.sample("roundhouse_tensor_pool_bytes", device="cpu", state="leased")

    # The trial at warm-up ran two rows, alone and together; its buffers are in the pool.
    before = figures()
    for hits in range(3):
        answer = server.infer("wide", input_data=[hits] * width)
        assert answer["output_shape"] == [1, width]
        assert set(answer["output_data"]) == {hits}
        wait_until(lambda: leased() == 0)
        assert [now - was for now, was in zip(figures(), before, strict=True)] == [hits + 1, 0, 0, 0]
    assert server.sample("roundhouse_tensor_pool_bytes", device="cpu", state="idle") == 2 * 8 * 2**20 + 16 * 2**20


def test_timings_show_run_and_queue(start: Start, tmp_path: Path) -> None:
    """A run of 0.3 s shows as compute, in Server-Timing, latency_ms and the histogram of those that were queued."""
    entry, gate = slow_model(tmp_path)
    server = start(entry, gated=True).wait_ready()
    held_s = 0.3
    with callers(server, 4) as many:
        with gate.closed():
            asked = [many.ask("slow", **QUESTION) for _ in range(4)]
            wait_for_inflight(server, 4)
            # One of them runs, and the next was handed to the worker thread.
            wait_until(lambda: server.sample("roundhouse_queue_depth", model="slow") == 2)
            assert server.sample("roundhouse_inflight") == 4
            time.sleep(held_s)
        answers = [each.result() for each in asked]
        assert [answer.json()["output_data"] for answer in answers] == [ROW] * 4
    assert server.sample("roundhouse_queue_depth", model="slow") == 0
    # The three others waited for the first.
    assert server.sample("roundhouse_queue_seconds_sum", model="slow") > 3 * held_s
    assert server.sample("roundhouse_compute_seconds_sum", model="slow") > held_s
    parts = [dict(part.split(";dur=") for part in a.headers["server-timing"].split(", ")) for a in answers]
    timings = [{name: float(value) for name, value in part.items()} for part in parts]
    assert [list(timing) for timing in timings] == [["decode", "queue", "compute", "encode"]] * 4
    first = max(timings, key=lambda timing: timing["compute"])
    assert first["compute"] > held_s * 1000
    assert held_s * 1000 > min(timing["decode"] + timing["encode"] for timing in timings), "they exclude the wait"
    for answer, timing in zip(answers, timings, strict=True):
        assert json.loads(answer.text)["latency_ms"] >= timing["queue"] + timing["compute"]
