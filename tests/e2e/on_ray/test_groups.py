"""Lazy models that share replicas on a local cluster: evictions under load, and what the server says of them."""

import itertools
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import numpy as np
import onnx
import psutil
import pytest
from onnx import helper

from tests.e2e.on_ray.cluster import DeployedServer, RayCluster
from tests.e2e.server import WAIT_S, wait_until
from tests.support.models.onnx_graphs import ONNX_DTYPES, model_of, save

pytestmark = [pytest.mark.ray, pytest.mark.extended]

FACTORS = {"two": 2.0, "three": 3.0, "five": 5.0, "seven": 7.0, "eleven": 11.0, "thirteen": 13.0}
WEIGHT_BYTES = 24 * 1024**2
BUDGET_BYTES = 70 * 1024**2
"""For two models: each takes more than its weight."""
CALLERS = 4
REQUESTS = 40
SETTINGS = "[performance]\nintra_op_threads = 1\n"
RAY = f"""ingress_cpus = 0.1
[[ray.groups]]
name = "small"
replicas = 2
num_cpus = 0.1
max_model_memory = {BUDGET_BYTES}
"""


def large(factor: float) -> onnx.ModelProto:
    """x [n] → y = x · factor, by a table of WEIGHT_BYTES whose entries are all the factor."""
    table = np.full(WEIGHT_BYTES // 4, factor, np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "zero"], ["none"]),
        helper.make_node("Cast", ["none"], ["at"], to=ONNX_DTYPES["int64"]),
        helper.make_node("Gather", ["table", "at"], ["factor"]),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    row = ("x", "float32", ("n",)), ("y", "float32", ("n",))
    return model_of(nodes, [row[0]], [row[1]], {"table": table, "zero": np.zeros(1, np.float32)})


@pytest.fixture(scope="module")
def deployed(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeployedServer]:
    folder = tmp_path_factory.mktemp("groups")
    entries = ""
    for name, factor in FACTORS.items():
        (folder / name).mkdir()
        path = save(large(factor), folder / name)
        entries += f'[[models.onnx_models]]\nname = "{name}"\npath = "{path}"\nload = "lazy"\nreplica_group = "small"\n'
    server = DeployedServer(cluster, folder, SETTINGS + entries, RAY, "groups").wait_ready()
    wait_until(lambda: server.num_running("group-small") == 2)
    yield server
    server.client.close()
    cluster.delete("groups")


def events(process: psutil.Process) -> list[dict[str, Any]]:
    """Return the log of a replica."""
    lines = Path(os.readlink(f"/proc/{process.pid}/fd/1")).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def changes(server: DeployedServer) -> list[list[tuple[str, int]]]:
    """Return for each replica the models that it has loaded, with their bytes, and evicted, with negative ones."""
    found = []
    for process in server.replicas("group-small"):
        sign = {"model ready": 1, "model evicted": -1}
        known = [each for each in events(process) if each["event"] in sign]
        found.append([(each["model"], sign[each["event"]] * each["memory_bytes"]) for each in known])
    return found


def ask(client: httpx.Client, name: str, number: int) -> None:
    """Send a request, and check its answer."""
    answer = client.post(f"/models/{name}/infer", json={"input_data": [float(number)]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["output_data"] == [FACTORS[name] * number]


def call(url: str, seed: int, names: list[str], over: Event) -> None:
    """Ask for models in random order, until it is over and at least REQUESTS times."""
    choice = random.Random(seed)
    with httpx.Client(base_url=url, timeout=WAIT_S, trust_env=False) as client:
        for number in itertools.count():
            if number >= REQUESTS and over.is_set():
                return
            ask(client, choice.choice(names), number % 100)


@contextmanager
def callers(url: str, names: list[str]) -> Iterator[None]:
    """Ask for models by several callers within the block. Raises the first error at its end."""
    over = Event()
    with ThreadPoolExecutor(CALLERS) as threads:
        calls = [threads.submit(call, url, seed, names, over) for seed in range(CALLERS)]
        try:
            yield
        finally:
            over.set()
        for each in calls:
            each.result()


def test_requests_prefer_replica_with_model(deployed: DeployedServer) -> None:
    few = ["two", "three", "five"]
    with callers(deployed.url, few):
        pass
    loads = Counter(name for replica in changes(deployed) for name, _ in replica)
    assert loads == dict.fromkeys(few, 1)
    assert all(changes(deployed)), "both replicas are used"


def test_models_beyond_memory_answer_with_evictions(deployed: DeployedServer) -> None:
    with callers(deployed.url, list(FACTORS)):
        pass
    evictions = 0
    for replica in changes(deployed):
        held = np.cumsum([size for _, size in replica])
        assert WEIGHT_BYTES < held.max() <= BUDGET_BYTES
        evictions += sum(size < 0 for _, size in replica)
    assert evictions > 0
    wait_until(lambda: deployed.sample("roundhouse_model_evictions_total") == evictions)
    details = [deployed.client.get(f"/models/{name}").json() for name in FACTORS]
    assert {each["state"] for each in details} == {"ready", "registered"}
    loaded = [each["memory_bytes"] for each in details if each["state"] == "ready"]
    assert all(size > WEIGHT_BYTES for size in loaded)
    assert sum(loaded) <= 2 * BUDGET_BYTES


def test_killed_replica_of_group_fails_no_request(deployed: DeployedServer) -> None:
    [first, _] = before = deployed.replicas("group-small")
    with callers(deployed.url, list(FACTORS)):
        first.kill()
        wait_until(lambda: not first.is_running() or first.status() == psutil.STATUS_ZOMBIE)
        wait_until(lambda: len([p for p in deployed.replicas("group-small") if p != first]) == len(before))
