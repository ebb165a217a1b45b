"""Versions of a model: swap and rollback under load, canary and shadow traffic, watched folders."""

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.conftest import Start
from tests.e2e.engines import engines
from tests.e2e.server import WAIT_S, RunningServer, assert_refused, wait_until
from tests.support.models import onnx_costly_graphs, onnx_graphs

SIDE = onnx_costly_graphs.side(0.1)
ONES = {"input_data": [1] * SIDE}


def add_version(folder: Path, version: int, factor: float | None = None) -> None:
    """Add a version that multiplies by its number, unless `factor` is given."""
    beside = folder.parent / f".{version}"
    beside.mkdir()
    onnx_graphs.save(onnx_costly_graphs.weighted(version if factor is None else factor, 0.1), beside)
    beside.rename(folder / str(version))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "m"
    folder.mkdir()
    add_version(folder, 1)
    return folder


def entry(folder: Path, keys: str = "") -> str:
    return f'[[models.onnx_models]]\nname = "m"\npath = "{folder}"\n{keys}\n'


def order(server: RunningServer, verb: str = "load", **body: object) -> Any:
    answer = server.client.post(f"/models/m/{verb}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ask(server: RunningServer, version: int | None = None) -> tuple[str, float]:
    """Return the version that answered, and its factor."""
    path = "/models/m/infer" if version is None else f"/models/m/versions/{version}/infer"
    answer = server.client.post(path, json=ONES)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert len(set(body["output_data"])) == 1
    return body["version"], body["output_data"][0]


@contextmanager
def callers(server: RunningServer, count: int, pause_s: float = 0) -> Iterator[Counter[tuple[int, str, float]]]:
    """Send requests from `count` threads; count their outcomes as (status, version, factor).

    `pause_s`: of each thread between two requests, so that a test that waits takes no core from others.
    """
    stop = threading.Event()
    outcomes: Counter[tuple[int, str, float]] = Counter()

    def hammer() -> None:
        while not stop.is_set():
            answer = client.post("/models/m/infer", json=ONES)
            body = answer.json()
            outcomes[answer.status_code, body.get("version", ""), body.get("output_data", [0])[0]] += 1
            stop.wait(pause_s)

    # One client for all: each would read the certificates of TLS.
    limits = httpx.Limits(max_connections=count)
    with (
        httpx.Client(base_url=server.url, timeout=WAIT_S, limits=limits, verify=False) as client,
        ThreadPoolExecutor(count) as pool,
    ):
        hammering = [pool.submit(hammer) for _ in range(count)]
        try:
            yield outcomes
        finally:
            stop.set()
        for each in hammering:
            each.result()


def test_newest_version_served_after_load(start: Start, folder: Path) -> None:
    add_version(folder, 9)
    add_version(folder, 10)
    server = start(entry(folder)).wait_ready()
    assert ask(server) == ("10", 10)
    model = server.client.get("/models/m").json()
    assert (model["versions"], model["active_version"]) == (["1", "9", "10"], "10")
    assert {name: detail["state"] for name, detail in model["version_details"].items()} == {
        "1": "registered", "9": "registered", "10": "ready",
    }  # fmt: skip
    add_version(folder, 11)
    assert ask(server) == ("10", 10)
    assert order(server)["active_version"] == "11"
    assert ask(server) == ("11", 11)
    answer = server.client.post("/models/m/versions/10/infer", json=ONES)
    assert_refused(answer, 404, "version_not_found", 'no version "10"; there is 11')


@pytest.mark.extended
def test_swap_and_rollback_under_load_fail_nothing(start: Start, folder: Path) -> None:
    add_version(folder, 2)
    server = start(entry(folder)).wait_ready()
    with callers(server, 32) as outcomes:
        wait_until(lambda: outcomes[200, "2", 2] > 50)
        for _ in range(3):
            order(server, "load", version="1")
            wait_until(lambda: outcomes[200, "1", 1] > 50)
            model = order(server, "rollback")
            assert (model["active_version"], model["previous_version"]) == ("2", "1")
            assert model["version_details"]["1"]["state"] == "unloaded"
            outcomes[200, "1", 1] = 0
    assert set(outcomes) == {(200, "1", 1), (200, "2", 2)}


@pytest.mark.extended
def test_failed_version_leaves_old_one_serving(start: Start, folder: Path) -> None:
    server = start(entry(folder)).wait_ready()
    (folder / "2").mkdir()
    (folder / "2" / "model.onnx").write_bytes(b"no graph at all")
    with callers(server, 4) as outcomes:
        refusal = server.client.post("/models/m/load", json={"version": "2"})
        assert_refused(refusal, 503, "model_failed", "2/model.onnx")
        assert_refused(server.client.post("/models/m/load", json={"version": "3"}), 404, "version_not_found", '"3"')
        wait_until(lambda: outcomes[200, "1", 1] > 50)
    assert set(outcomes) == {(200, "1", 1)}
    model = server.client.get("/models/m").json()
    assert (model["state"], model["active_version"]) == ("ready", "1")
    assert model["version_details"]["2"]["state"] == "failed"
    assert "2/model.onnx" in model["version_details"]["2"]["reason"]
    assert_refused(server.client.post("/models/m/rollback"), 404, "version_not_found")


@pytest.mark.extended
def test_version_without_memory_beside_old_refused(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    for version in (1, 2):
        (folder / str(version)).mkdir(parents=True)
        onnx_graphs.save(onnx_costly_graphs.weighted(version, 20), folder / str(version))
    server = start(entry(folder, "version_policy = [1]") + '[memory]\nmax_model_memory = "30MB"\n').wait_ready()
    refusal = server.client.post("/models/m/load", json={"version": "2"})
    assert_refused(refusal, 507, "out_of_memory", "beside version 1, which serves")
    question = {"input_data": [1] * onnx_costly_graphs.side(20)}
    assert server.infer("m", **question)["version"] == "1"


@pytest.mark.extended
def test_load_serves_files_changed_in_place(start: Start, folder: Path) -> None:
    server = start(entry(folder)).wait_ready()
    with callers(server, 8) as outcomes:
        wait_until(lambda: outcomes[200, "1", 1] > 50)
        for factor in (5, 7):
            onnx_graphs.save(onnx_costly_graphs.weighted(factor, 0.1), folder / "new.onnx")
            (folder / "new.onnx").rename(folder / "1" / "model.onnx")
            loads = order(server)["version_details"]["1"]["loads"]
            assert ask(server) == ("1", factor)
            assert order(server)["version_details"]["1"]["loads"] == loads, "nothing has changed"
            wait_until(lambda factor=factor: outcomes[200, "1", factor] > 50)  # type: ignore[misc]
        (folder / "1" / "model.onnx").unlink()
        (folder / "1" / "model.onnx").write_bytes(b"no graph at all")
        assert_refused(server.client.post("/models/m/load"), 503, "model_failed", "1/model.onnx")
        assert ask(server) == ("1", 7)
    assert set(outcomes) == {(200, "1", factor) for factor in (1, 5, 7)}


def test_several_versions_served(start: Start, folder: Path) -> None:
    for version in (2, 3):
        add_version(folder, version)
    server = start(entry(folder, "version_policy = [1, 3]")).wait_ready()
    assert ask(server) == ("3", 3)
    assert ask(server, 1) == ("1", 1)
    body = {**ONES, "model_name": "m", "version": "2"}
    assert_refused(server.client.post("/infer", json=body), 404, "version_not_found", 'no version "2"; there is 1, 3')
    assert order(server, "unload", version="3")["active_version"] == "1"
    assert ask(server) == ("1", 1)
    assert_refused(server.client.post("/models/m/versions/3/infer", json=ONES), 503, "unloaded")
    assert order(server)["active_version"] == "3"
    assert {ask(server), ask(server, 1)} == {("3", 3), ("1", 1)}


def test_canary_gets_its_share(start: Start, folder: Path) -> None:
    add_version(folder, 2)
    server = start(entry(folder)).wait_ready()
    order(server, "load", version="1")
    model = order(server, canary={"version": "2", "percent": 25})
    assert model["canary"] == {"version": "2", "percent": 25}
    assert Counter(ask(server) for _ in range(40)) == {("1", 1): 30, ("2", 2): 10}
    assert ask(server, 2) == ("2", 2)
    model = order(server, canary=None)
    assert (model["canary"], model["version_details"]["2"]["state"]) == (None, "unloaded")
    assert Counter(ask(server) for _ in range(10)) == {("1", 1): 10}
    order(server, canary={"version": "2", "percent": 50})
    assert order(server, "load", version="2")["canary"] is None
    assert Counter(ask(server) for _ in range(10)) == {("2", 2): 10}


NONSENSE: list[tuple[dict[str, Any], str]] = [
    ({"canary": {"version": "1", "percent": 5}}, "canary: version"),
    ({"canary": {"version": "2"}}, "canary.percent:"),
    ({"canary": {"version": "2", "percent": 101}}, "canary.percent:"),
    ({"canary": {"version": 2, "percent": 5}}, "canary.version:"),
    ({"shadow": "2"}, "shadow:"),
    ({"version": 2}, "version:"),
    ({"version": "2", "canary": None}, "canary: expected as the only field"),
]


@pytest.mark.extended
def test_invalid_load_order_refused(start: Start, folder: Path) -> None:
    server = start(entry(folder)).wait_ready()
    for body, field in NONSENSE:
        assert_refused(server.client.post("/models/m/load", json=body), 400, "invalid_input", field)
    assert ask(server) == ("1", 1)


def test_shadow_gets_copies_of_requests(start: Start, folder: Path) -> None:
    add_version(folder, 2)
    add_version(folder, 3, factor=1)
    server = start(entry(folder)).wait_ready()
    order(server, "load", version="1")

    def outcomes(version: str) -> dict[str, float]:
        samples = server.metrics()["roundhouse_shadow_requests"].samples
        return {s.labels["outcome"]: s.value for s in samples if s.labels["version"] == version}

    order(server, shadow={"version": "2"})
    assert Counter(ask(server) for _ in range(10)) == {("1", 1): 10}
    wait_until(lambda: outcomes("2") == {"different": 10})
    order(server, shadow={"version": "3", "percent": 50})
    assert Counter(ask(server) for _ in range(10)) == {("1", 1): 10}
    wait_until(lambda: outcomes("3") == {"same": 5})
    assert server.client.get("/models/m").json()["version_details"]["2"]["state"] == "unloaded"
    order(server, shadow=None)
    ask(server)
    assert outcomes("3") == {"same": 5}
    assert server.sample("roundhouse_requests_total", model="m", version="3") == 0


@pytest.mark.extended
def test_shadow_process_has_low_priority(start: Start, folder: Path) -> None:
    add_version(folder, 2)
    server = start(entry(folder, 'isolation = "process"')).wait_ready()
    own = psutil.Process(server.process.pid).nice()

    def niceness() -> list[int]:
        return sorted(process.nice() for _, process in engines(server))

    order(server, "load", version="1")
    order(server, shadow={"version": "2"})
    wait_until(lambda: niceness() == [own, min(own + 10, 19)])
    # The priority of a running process cannot be raised: version 2 gets another one.
    order(server, "load", version="2")
    assert ask(server) == ("2", 2)
    wait_until(lambda: set(niceness()) == {own})


@pytest.mark.extended
def test_watched_folder_swapped_on_change(start: Start, folder: Path) -> None:
    server = start(entry(folder, "watch = true")).wait_ready()
    with callers(server, 4, pause_s=0.05) as outcomes:
        wait_until(lambda: outcomes[200, "1", 1] > 10)
        (folder / "2").mkdir()
        (folder / "2" / "model.onnx").write_bytes(b"half of a file")
        server.wait_for_log("changed files are not served", model="m")
        onnx_graphs.save(onnx_costly_graphs.weighted(2, 0.1), folder / "2")
        wait_until(lambda: outcomes[200, "2", 2] > 10)
        # The files of the active version are replaced atomically, by renaming.
        onnx_graphs.save(onnx_costly_graphs.weighted(5, 0.1), folder / "new.onnx")
        (folder / "new.onnx").rename(folder / "2" / "model.onnx")
        wait_until(lambda: outcomes[200, "2", 5] > 10)
    assert set(outcomes) == {(200, "1", 1), (200, "2", 2), (200, "2", 5)}


@pytest.mark.extended
def test_watched_file_reloaded_unless_unloaded(start: Start, tmp_path: Path) -> None:
    file = onnx_graphs.save(onnx_costly_graphs.weighted(1, 0.1), tmp_path / "m.onnx")
    other = onnx_graphs.save(onnx_costly_graphs.weighted(2, 0.1), tmp_path / "other")
    server = start(entry(file, "watch = true")).wait_ready()
    assert ask(server) == ("1", 1)
    shutil.copy(other, tmp_path / "copy")
    (tmp_path / "copy").rename(file)
    wait_until(lambda: ask(server) == ("1", 2))
    order(server, "unload")
    onnx_graphs.save(onnx_costly_graphs.weighted(3, 0.1), tmp_path / "third").rename(file)
    assert_refused(server.client.post("/models/m/infer", json=ONES), 503, "unloaded")
    order(server)
    assert ask(server) == ("1", 3)
