"""Collections in the memory budget of a server: refusals over HTTP, metrics, and the events of the page."""

import json
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.conftest import Start
from tests.e2e.server import RunningServer, assert_refused

pytestmark = pytest.mark.extended

BUDGET = 8 * 1024**2
CONFIG = f"""
[memory]
max_model_memory = {BUDGET}
[[collections]]
name = "numbers"
dimensions = 256
[[collections]]
name = "others"
dimensions = 256
"""


def upsert(server: RunningServer, collection: str, count: int) -> httpx.Response:
    vectors = np.random.default_rng(count).normal(size=(count, 256)).round(3).tolist()
    body = {"ids": [f"{count}-{i}" for i in range(count)], "vectors": vectors}
    return server.client.post(f"/v1/collections/{collection}/upsert", json=body)


def device_of_page(server: RunningServer) -> Any:
    """Return the CPU of the first sample that the page gets."""
    with server.client.stream("GET", "/events", timeout=30) as response:
        is_sample = False
        for line in response.iter_lines():
            if is_sample and line.startswith("data: "):
                (device,) = (each for each in json.loads(line[6:])["devices"] if each["id"] == "cpu")
                return device
            is_sample = line == "event: sample" or (is_sample and line != "")
    raise AssertionError("the stream has no sample")


def test_upserts_share_budget_of_server(start: Start) -> None:
    server = start(CONFIG).wait_ready()
    assert upsert(server, "numbers", 1000).status_code == 200
    assert upsert(server, "others", 1000).status_code == 200
    answer = upsert(server, "numbers", 9000)
    message = assert_refused(answer, 507, "out_of_memory", 'collection "numbers": expected', "MiB of 8 MiB left")
    assert message.endswith("unload a model, or raise memory.max_model_memory")
    shown = server.client.get("/v1/collections/numbers").json()
    assert shown["rows"] == 1000
    found = server.client.post("/v1/collections/numbers/search", json={"query": [1] * 256, "top_k": 5})
    assert len(found.json()["results"]) == 5
    held = server.sample("roundhouse_model_budget_bytes", device="cpu", kind="collections")
    assert held == server.sample("roundhouse_model_budget_bytes", device="cpu", kind="reserved")
    assert 2 * 1000 * 1024 <= held <= BUDGET
    device = device_of_page(server)
    assert (device["limit_bytes"], device["collections_bytes"]) == (BUDGET, device["reserved_bytes"])
    assert device["reserved_bytes"] == held
    server.check_log()


def test_collection_beyond_budget_leaves_server_degraded(start: Start) -> None:
    server = start(CONFIG).wait_ready()
    assert upsert(server, "numbers", 5000).status_code == 200
    server.stop()
    server = start(CONFIG.replace(str(BUDGET), str(BUDGET // 4))).wait_ready()
    assert server.client.get("/health").json()["collections"] == {"numbers": "failed", "others": "ready"}
    failed = server.wait_for_log("collection failed to open", collection="numbers")
    assert "MiB of 2 MiB left for models and collections" in failed["reason"]
