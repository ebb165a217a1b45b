"""Models that are loaded by their first request, and evicted when others need their memory."""

import asyncio
import json
import random
import shutil
import socket
from collections import Counter
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.conftest import Start
from tests.e2e.server import WAIT_S, RunningServer, assert_refused, wait_until
from tests.support.models import onnx_costly_graphs, onnx_graphs

MEGABYTES = 20
SIDE = onnx_costly_graphs.side(MEGABYTES)
ONES = {"input_data": [1] * SIDE}
FACTORS = {"a": 2, "b": 3, "c": 5, "d": 7}
REQUESTS = 5
"""Of each caller, while models evict each other."""


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with four models of 20 MB, which no test changes."""
    folder = tmp_path_factory.mktemp("graphs")
    for name, factor in FACTORS.items():
        onnx_graphs.save(onnx_costly_graphs.weighted(factor, MEGABYTES), folder / f"{name}.onnx")
    return folder


def entries(folder: Path, keys: str = 'load = "lazy"', budget: str = "50MB") -> str:
    """Return the entries of the four models with these keys, and the budget for all."""
    text = f'[memory]\nmax_model_memory = "{budget}"\n'
    for name in FACTORS:
        text += f'[[models.onnx_models]]\nname = "{name}"\npath = "{folder / name}.onnx"\n{keys}\n'
    return text


def states(server: RunningServer) -> dict[str, str]:
    return {model["name"]: model["state"] for model in server.client.get("/models").json()["models"]}


def test_lazy_model_loaded_by_first_request(start: Start, graphs: Path) -> None:
    server = start(entries(graphs)).wait_ready()
    assert states(server) == dict.fromkeys(FACTORS, "registered")
    assert server.client.get("/health").json()["status"] == "healthy"
    answer = server.infer("a", **ONES)
    assert answer["output_data"] == [2] * SIDE
    model = server.client.get("/models/a").json()
    assert model["state"] == "ready"
    assert MEGABYTES * 1e6 <= model["memory_bytes"] < 1.5 * MEGABYTES * 1e6
    assert server.sample("roundhouse_model_budget_bytes", kind="reserved") == model["memory_bytes"]
    assert server.sample("roundhouse_model_memory_bytes", model="a") == model["memory_bytes"]


def test_least_recently_used_model_evicted(start: Start, graphs: Path) -> None:
    server = start(entries(graphs)).wait_ready()
    for name in "abacad":
        assert server.infer(name, **ONES)["output_data"][0] == FACTORS[name]
    assert states(server) == {"a": "ready", "b": "registered", "c": "registered", "d": "ready"}
    assert server.infer("b", **ONES)["output_data"][0] == 3
    assert states(server) == {"a": "registered", "b": "ready", "c": "registered", "d": "ready"}
    assert server.sample("roundhouse_model_evictions_total") == 3
    assert server.sample("roundhouse_model_loads_total", model="b") == 2


@pytest.mark.extended
def test_start_up_evicts_no_model(start: Start, graphs: Path) -> None:
    server = start(entries(graphs, keys="")).wait_ready()
    assert states(server) == {"a": "ready", "b": "ready", "c": "registered", "d": "registered"}
    server.wait_for_log("model is not loaded at start-up", model="d")
    assert [event["model"] for event in server.events("model is not loaded at start-up")] == ["c", "d"]
    assert server.infer("d", **ONES)["output_data"][0] == 7
    assert server.client.get("/health/ready").status_code == 200


def test_pinned_models_stay_others_refused(start: Start, graphs: Path) -> None:
    text = entries(graphs, keys="pinned = true")
    at_c = text.index('name = "c"')
    server = start(text[:at_c] + text[at_c:].replace("pinned = true", 'load = "lazy"')).wait_ready()
    answer = server.client.post("/models/c/infer", json=ONES)
    assert_refused(answer, 507, "out_of_memory", "unpin", "max_model_memory", "MiB")
    assert_refused(server.client.post("/models/d/load"), 507, "out_of_memory")
    assert states(server) == {"a": "ready", "b": "ready", "c": "failed", "d": "failed"}
    # Free memory lets the refused model load by its next request.
    server.client.post("/models/a/unload")
    wait_until(lambda: server.client.post("/models/c/infer", json=ONES).status_code == 200)
    assert_refused(server.client.post("/models/a/infer", json=ONES), 503, "unloaded")


@pytest.mark.extended
def test_deadline_bounds_wait_for_load(start: Start, graphs: Path) -> None:
    server = start(entries(graphs)).wait_ready()
    answer = server.client.post("/models/a/infer", json={**ONES, "timeout_ms": 1})
    assert_refused(answer, 504, "deadline_exceeded", "was not loaded within timeout_ms")
    # The load continues.
    wait_until(lambda: states(server)["a"] == "ready")
    assert server.infer("a", **ONES, timeout_ms=20_000)["output_data"][0] == 2
    assert server.sample("roundhouse_model_loads_total", model="a") == 1


@pytest.mark.extended
def test_failed_load_reported_and_repeated(start: Start, graphs: Path, tmp_path: Path) -> None:
    own = shutil.copytree(graphs, tmp_path / "graphs")
    server = start(entries(own)).wait_ready()
    file = own / "a.onnx"
    content = file.read_bytes()
    file.write_bytes(content[:1000])
    assert_refused(server.client.post("/models/a/infer", json=ONES), 503, "model_failed", "failed to load", "a.onnx")

    def is_retried_later() -> bool:
        answer = server.client.post("/models/a/infer", json=ONES)
        return "is retried in" in assert_refused(answer, 503, "model_failed", "a.onnx")

    # On a slow machine the time until the next load may have passed already; it grows with each failure.
    wait_until(is_retried_later)
    assert server.client.get("/health").json()["status"] == "degraded"
    file.write_bytes(content)
    wait_until(lambda: server.client.post("/models/a/infer", json=ONES).status_code == 200)
    assert server.client.get("/health").json()["status"] == "healthy"


@pytest.mark.extended
def test_disconnect_during_load_affects_no_other(start: Start, graphs: Path) -> None:
    server = start(entries(graphs)).wait_ready()
    with httpx.Client(base_url=server.url, timeout=0.005, verify=False) as hasty:
        for name in FACTORS:
            try:
                hasty.post(f"/models/{name}/infer", json=ONES)
            except httpx.TimeoutException:
                continue
    for name, factor in FACTORS.items():
        assert server.infer(name, **ONES)["output_data"][0] == factor
    wait_until(lambda: server.sample("roundhouse_inflight") == 0)
    assert server.sample("roundhouse_queue_depth") == 0


@pytest.mark.extended
def test_four_models_in_memory_of_two(start: Start, graphs: Path) -> None:
    """The benchmark runs four MiniLMs for a minute."""
    server = start(entries(graphs), is_fork=False).wait_ready()
    limit = 50e6
    process = psutil.Process(server.process.pid)
    # The first load also imports the framework, which is not part of the budget.
    server.infer("a", **ONES)
    server.client.post("/models/a/unload")
    server.client.post("/models/a/load")
    before = process.memory_info().rss - MEGABYTES * 1e6
    peak_reserved = peak_rss = 0.0
    codes: Counter[int] = Counter()

    async def call(seed: int, client: httpx.AsyncClient) -> None:
        choose = random.Random(seed)
        for _ in range(REQUESTS):
            name = choose.choice("abcd")
            answer = await client.post(f"/models/{name}/infer", json=ONES)
            codes[answer.status_code] += 1
            assert answer.status_code != 200 or answer.json()["output_data"] == [FACTORS[name]] * SIDE

    async def watch(client: httpx.AsyncClient) -> None:
        nonlocal peak_reserved, peak_rss
        while True:
            page = (await client.get("/metrics")).text
            line = next(x for x in page.splitlines() if 'kind="reserved"' in x and "model_budget" in x)
            peak_reserved = max(peak_reserved, float(line.rpartition(" ")[2]))
            peak_rss = max(peak_rss, process.memory_info().rss)

    async def all_at_once() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S, verify=False) as client:
            watching = asyncio.create_task(watch(client))
            await asyncio.gather(*(call(seed, client) for seed in range(16)))
            assert not watching.done()
            watching.cancel()

    asyncio.run(all_at_once())
    assert set(codes) == {200}
    assert 0 < peak_reserved <= limit
    assert peak_rss < 1.15 * (before + limit) + 64e6  # the allocator keeps these for the next request
    assert server.sample("roundhouse_model_evictions_total") > 4
    loaded: Counter[str] = Counter()
    for event in server.log:
        if event["event"] in ("model ready", "model evicted", "model unloaded"):
            loaded[event["model"]] += 1 if event["event"] == "model ready" else -1
            assert loaded[event["model"]] in (0, 1), "loaded twice at once"
            assert loaded.total() <= 2


@pytest.mark.extended
def test_client_that_stops_reading_blocks_no_eviction(start: Start, graphs: Path) -> None:
    server = start(entries(graphs)).wait_ready()
    rows = 800  # a response of 7 MB, more than the kernel's buffers hold
    body = json.dumps({"input_data": [1] * SIDE * rows, "batch_size": rows}).encode()
    head = b"POST /models/a/infer HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    question = head % len(body) + body
    with socket.create_connection(("127.0.0.1", server.port)) as deaf:
        # The first response fills the connection, the second is queued.
        deaf.sendall(2 * question)
        wait_until(lambda: server.sample("roundhouse_batch_size_sum", model="a") == 2 * rows)
        for name in "bcd":
            assert server.infer(name, **ONES, timeout_ms=20_000)["output_data"][0] == FACTORS[name]
        assert states(server)["a"] == "registered"
        assert server.sample("roundhouse_inflight") == 1
