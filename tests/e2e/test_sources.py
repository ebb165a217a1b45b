"""Models that a server fetches from a hub: at start-up, with a request, by registrations and loads."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.hubs import (
    DATA,
    HELD_AFTER,
    TOKEN,
    doubled,
    entry,
    environment,
    files,
    hold,
    let_go,
    models_table,
    resumed_at,
    token_hub,
)
from tests.e2e.server import MODELS, WAIT_S, RunningServer, assert_refused, serving, wait_until
from tests.support.hub import Hub

NUMBERS = [1.0, 2.0, 3.0]
Start = Callable[..., RunningServer]


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with the model `org/small`."""
    with token_hub() as running:
        running.publish("org/small", files())
        yield running


@pytest.fixture
def start(hub: Hub, tmp_path: Path) -> Iterator[Start]:
    """start(*entries, sources="[]", head="") → a server for one test. No log has the token or a signature."""
    servers: list[RunningServer] = []
    with ExitStack() as stack:

        def start_one(*entries: str, sources: str = "[]", head: str = "", needs_torch: bool = False) -> RunningServer:
            config = head + models_table(tmp_path, sources) + "".join(entries)
            variables = environment(hub, tmp_path)
            started = serving(tmp_path, config, variables, is_fork=not needs_torch, needs_torch=needs_torch)
            servers.append(stack.enter_context(started))
            return servers[-1]

        yield start_one
        let_go(hub)
    for server in servers:
        assert not [line for line in server.lines if TOKEN in line or "signature" in line]


def version(server: RunningServer, name: str = "small") -> dict[str, Any]:
    (detail,) = server.client.get(f"/models/{name}").json()["version_details"].values()
    found: dict[str, Any] = detail
    return found


def wait_held(server: RunningServer, name: str = "small") -> None:
    """Wait until the download of a model is held by the hub."""

    def is_held() -> bool:
        shown = version(server, name)["download"]
        return shown is not None and shown["received_bytes"] >= HELD_AFTER

    wait_until(is_held)


def test_startup_model_is_fetched_and_served(hub: Hub, start: Start) -> None:
    commit = hub.publish("org/small", files(), "main")
    server = start(entry("small", "hf://org/small@main")).wait_ready()
    assert server.infer("small", input_data=NUMBERS)["output_data"] == NUMBERS
    shown = version(server)
    assert (shown["path"], shown["revision"], shown["download"]) == ("hf://org/small@main", commit, None)
    total = len(DATA) + len(files()["model.onnx"])
    assert server.sample("roundhouse_download_bytes_total", model="small") == total
    done = server.wait_for_log("model files downloaded")
    assert (done["model"], done["downloaded_bytes"], done["revision"]) == ("small", total, commit)
    assert all(
        request.headers["authorization"].endswith(TOKEN) for request in hub.web.requests if "/api/" in request.path
    )
    assert not [path for path in hub.web.requests if path.path.endswith((".bin", ".py"))]


@pytest.mark.extended
def test_cached_model_serves_without_hub(hub: Hub, start: Start) -> None:
    config = entry("small", "hf://org/small"), entry("absent", "hf://org/absent", load='"lazy"')
    start(*config).wait_ready().stop()
    hub.web.faults.is_offline = True
    server = start(*config).wait_ready()
    assert server.infer("small", input_data=NUMBERS)["output_data"] == NUMBERS
    server.wait_for_log("source does not answer; the cached version is used")
    answer = server.post("/models/absent/infer", '{"input_data": [1]}')
    assert_refused(answer, 503, "model_failed", "org/absent", "roundhouse serve")
    hub.web.faults.is_offline = False
    hub.publish("org/absent", files(doubled()))
    assert server.client.post("/models/absent/load").status_code == 200
    assert server.infer("absent", input_data=NUMBERS)["output_data"] == [2.0, 4.0, 6.0]


@pytest.mark.extended
def test_commit_in_cache_asks_no_hub(hub: Hub, start: Start) -> None:
    commit = hub.publish("org/small", files())
    config = entry("small", f"hf://org/small@{commit}")
    start(config).wait_ready().stop()
    before = len(hub.web.requests)
    server = start(config).wait_ready()
    assert server.infer("small", input_data=NUMBERS)["output_data"] == NUMBERS
    assert len(hub.web.requests) == before


@pytest.mark.extended
def test_lazy_model_is_fetched_beside_torch(hub: Hub, start: Start) -> None:
    # The libraries of PyTorch models set HF_HUB_OFFLINE in the process.
    local = f'[[models.torch_models]]\nname = "tiny-llama"\npath = "{MODELS / "tiny-llama"}"\n'
    server = start(local, entry("small", "hf://org/small", load='"lazy"'), needs_torch=True).wait_ready()
    assert hub.web.requests == []
    assert server.infer("tiny-llama", prompt="The", max_tokens=2)["tokens_generated"] == 2
    assert server.infer("small", input_data=NUMBERS)["output_data"] == NUMBERS


def test_registration_needs_address_within_sources(hub: Hub, start: Start) -> None:
    server = start(sources='["hf://org/small"]').wait_ready()

    def register(path: str) -> httpx.Response:
        body = {"name": "new", "path": path}
        answer = server.client.post("/models", json=body)
        if answer.status_code != 201:
            assert server.client.get("/models").json()["models"] == []
        return answer

    for path in ("hf://org/other", "hf://org/smaller", "s3://org/small", "https://org/small"):
        assert_refused(register(path), 403, "forbidden", "path: expected an address within models.sources", path)
    assert_refused(register("ftp://org/small"), 400, "invalid_input", "path: expected the scheme")
    assert hub.web.requests == []
    hub.web.faults.token = "another"
    assert_refused(register("hf://org/small"), 400, "invalid_input", "HF_TOKEN")
    hub.web.faults.token = TOKEN
    assert register("hf://org/small").status_code == 201
    assert server.infer("new", input_data=NUMBERS)["output_data"] == NUMBERS


@pytest.mark.extended
def test_no_address_is_registered_by_default(hub: Hub, start: Start) -> None:
    body = {"framework": "onnx", "name": "new", "path": "hf://org/small"}
    answer = start().wait_ready().client.post("/models", json=body)
    assert_refused(answer, 403, "forbidden", "models.sources")
    assert hub.web.requests == []


@pytest.mark.extended
@pytest.mark.parametrize("head", ["", "[performance]\nisolation = 'process'\n", "[server]\nworkers = 2\n"])
def test_new_content_replaces_old_without_failures(head: str, hub: Hub, start: Start) -> None:
    server = start(entry("small", "hf://org/small"), head=head).wait_ready()
    ended, results = threading.Event(), []

    def ask() -> None:
        while not ended.is_set():
            results.append(server.infer("small", input_data=NUMBERS)["output_data"])

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(results) > 10)
        commit = hub.publish("org/small", files(doubled()))
        assert server.client.post("/models/small/load").status_code == 200
        count = len(results)
        wait_until(lambda: len(results) > count + 10)
    finally:
        ended.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert {tuple(each) for each in results} == {(1.0, 2.0, 3.0), (2.0, 4.0, 6.0)}
    assert results[-1] == [2.0, 4.0, 6.0]
    assert version(server)["revision"] == commit
    loads = server.sample("roundhouse_model_loads_total", model="small")
    assert server.client.post("/models/small/load").status_code == 200
    assert server.sample("roundhouse_model_loads_total", model="small") == loads == 2


def test_killed_server_resumes_download(hub: Hub, start: Start) -> None:
    config = entry("small", "hf://org/small")
    hold(hub)
    server = start(config)
    wait_held(server)
    server.process.kill()
    server.wait_stopped(-signal.SIGKILL)
    let_go(hub)
    server = start(config).wait_ready()
    assert server.infer("small", input_data=NUMBERS)["output_data"] == NUMBERS
    offset = resumed_at(hub)
    assert 0 < offset < len(DATA)
    assert server.sample("roundhouse_download_bytes_total", model="small") <= len(DATA) - offset + len(
        files()["model.onnx"]
    )


@pytest.mark.extended
def test_stop_ends_download(hub: Hub, start: Start) -> None:
    hold(hub)
    server = start(entry("small", "hf://org/small"))
    wait_held(server)
    assert server.client.get("/health/ready").status_code == 503
    server.stop()


@pytest.mark.extended
def test_unload_ends_download_of_registration(hub: Hub, start: Start) -> None:
    hold(hub)
    server = start(sources='["hf://"]').wait_ready()
    body = {"framework": "onnx", "name": "small", "path": "hf://org/small"}
    answers = []
    registering = threading.Thread(target=lambda: answers.append(server.client.post("/models", json=body)))
    registering.start()
    wait_until(lambda: server.client.get("/models/small").status_code == 200)
    wait_held(server)
    total = version(server)["download"]
    assert total == {"received_bytes": total["received_bytes"], "total_bytes": len(DATA) + len(files()["model.onnx"])}
    assert server.client.delete("/models/small").status_code == 200
    registering.join(WAIT_S)
    assert_refused(answers[0], 503, "draining")
    assert server.client.get("/models").json()["models"] == []


@pytest.mark.extended
def test_model_above_bound_is_refused(hub: Hub, start: Start) -> None:
    server = start('max_download_bytes = "1MiB"\n', entry("small", "hf://org/small"))
    wait_until(lambda: server.client.get("/models/small").json()["state"] == "failed")
    reason = server.client.get("/models/small").json()["reason"]
    assert "expected at most models.max_download_bytes = 1 MiB, got 3 MiB" in reason
    assert hub.downloads() == []
