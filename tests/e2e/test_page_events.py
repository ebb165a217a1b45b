"""GET /events, GET /requests and files of models over real sockets, with one process and with two workers."""

import json
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from app.auth.principal import Scope
from tests.e2e.configs import onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.server import GRPC_PORT, MODELS, WAIT_S, RunningServer, free_port, serving, wait_until
from tests.support.keyring import MadeKey, make_key, write_keys
from tests.support.models import onnx_graphs

OPERATOR, RED, BLUE = (make_key(name) for name in ("ops", "red", "blue"))
READER = make_key("red", Scope.READ, models=("red-*",))
CALLER = make_key("red", Scope.INFER)
REVOKED = make_key("red")
WORKERS = [1, pytest.param(2, marks=pytest.mark.skipif(sys.platform != "linux", reason="several workers need Linux"))]


@pytest.fixture(scope="module", params=WORKERS, ids=["one", "workers"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with two tenants, their models, and one that both use."""
    folder = tmp_path_factory.mktemp("page")
    write_keys(folder / "keys.toml", OPERATOR, RED, BLUE, READER, CALLER, REVOKED)
    config = onnx_entries(folder, {name: onnx_graphs.identity() for name in ("red-m", "blue-m", "common")})
    config = config.replace('name = "red-m"\n', 'name = "red-m"\ndownloadable = true\n')
    config += f'[server]\nworkers = {request.param}\n[models]\nroots = ["{folder}"]\n[auth]\nmode = "required"\n'
    config += '[[auth.tenants]]\nname = "ops"\noperator = true\n'
    for name in ("red", "blue"):
        config += f'[[auth.tenants]]\nname = "{name}"\nmodels = ["{name}-*", "common"]\n'
    with serving(folder, config, {GRPC_PORT: free_port()}) as server:
        yield server.wait_ready()
        server.check_log()


class Stream:
    """The events of one page."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()
        self.events: list[tuple[str, Any]] = []

    def next(self) -> tuple[str, Any]:
        """Return the next event."""
        name = ""
        for line in self._lines:
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                self.events.append((name, json.loads(line[6:])))
                return self.events[-1]
        raise EOFError

    def until(self, name: str) -> Any:
        """Return the content of the next event with this name."""
        while True:
            found, content = self.next()
            if found == name:
                return content


@contextmanager
def page(server: RunningServer, key: MadeKey | None = None) -> Iterator[Stream]:
    """Open a page on a connection of its own."""
    headers = {} if key is None else key.headers
    with (
        httpx.Client(base_url=server.url, timeout=WAIT_S, trust_env=False, verify=False) as client,
        client.stream("GET", "/events", headers=headers) as response,
    ):
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream"
        yield Stream(response)


def infer(server: RunningServer, model: str, key: MadeKey, request_id: str) -> int:
    body = {"model_name": model, "input_data": [1.0]}
    headers = {**key.headers, "x-request-id": request_id}
    return server.client.post("/infer", json=body, headers=headers).status_code


def requests_of(server: RunningServer, key: MadeKey, query: str = "") -> list[Any]:
    response = server.client.get(f"/requests{query}", headers=key.headers)
    assert response.status_code == 200, response.text
    found: list[Any] = response.json()["requests"]
    return found


@pytest.mark.extended
def test_tenant_sees_its_own_only(shared: RunningServer) -> None:
    with ExitStack() as stack:
        keys = {"red": RED, "blue": BLUE, "reader": READER, "ops": OPERATOR}
        pages = {name: stack.enter_context(page(shared, key)) for name, key in keys.items()}
        for each in pages.values():
            each.until("sample")
        for number in range(3):
            assert infer(shared, "common", RED, f"red-secret-{number}") == 200
        assert infer(shared, "red-m", RED, "red-model") == 200
        assert infer(shared, "blue-m", RED, "red-unknown") == 404
        assert infer(shared, "common", BLUE, "blue-secret") == 200
        expected = {
            "red": {"red-secret-0", "red-secret-1", "red-secret-2", "red-model", "red-unknown"},
            "blue": {"blue-secret"},
            "reader": {"red-model", "red-unknown"},
        }
        expected["ops"] = expected["red"] | expected["blue"]
        models = {"red": ["red-m", "common"], "blue": ["blue-m", "common"], "reader": ["red-m"]}
        for name, each in pages.items():
            seen: set[str] = set()
            while not expected[name] <= seen:
                seen |= {request["id"] for request in each.until("requests")["requests"]}
            for _ in range(2):
                sample = each.until("sample")
            if name != "ops":
                assert list(sample["models"]) == models[name]
                assert {device["limit_bytes"] for device in sample["devices"]} == {None}
                text = json.dumps(each.events)
                others = [other for other in expected["ops"] - expected[name] if other in text]
                assert others == []
                hidden = {"red-m", "blue-m", "common"} - set(models[name])
                # The text of an error has the name that its own sender wrote.
                assert not any(f'"{model}"' in text.replace("red-unknown", "") for model in hidden - {"blue-m"})
    for key, name in ((RED, "red"), (BLUE, "blue"), (READER, "reader"), (OPERATOR, "ops")):
        assert expected[name] <= {each["id"] for each in requests_of(shared, key)}
        assert not (expected["ops"] - expected[name]) & {each["id"] for each in requests_of(shared, key)}


def test_samples_count_the_requests(shared: RunningServer) -> None:
    with page(shared, OPERATOR) as ops:
        before = ops.until("sample")["models"]["common"]["requests_total"]
        for number in range(20):
            infer(shared, "common", BLUE, f"counted-{number}")
        rates: list[Any] = []
        while not rates or ops.events[-1][1]["models"]["common"]["requests_total"] < before + 20:
            rates.append(ops.until("sample"))
        assert rates[-1]["models"]["common"]["p50_ms"] > 0
        assert any(each["server"]["requests_per_s"] > 0 for each in rates)
        totals, server = rates[-1]["totals"], rates[-1]["server"]
        assert totals["requests"] >= rates[-1]["models"]["common"]["requests_total"]
        assert totals["rows"] >= 20
        assert totals["p99_ms"] >= totals["p50_ms"] > 0
        assert sum(each["server"]["cpu_cores"] for each in rates) > 0
        assert server["resident_bytes"] > 1 << 20
        assert server["engine_resident_bytes"] is None
        assert [name for name, _ in ops.events[:4]] == ["hello", "models", "history", "requests"]
        hello = ops.events[0][1]
        assert hello["auth"] is True
        assert hello["caller"]["tenant"] == "ops"
        assert hello["caller"]["scopes"] == ["infer", "manage", "read", "write"]
    with page(shared, OPERATOR) as again:
        columns = again.until("history")["columns"]
        assert {len(column) for column in columns.values()} == {len(columns["t"])}
        assert sum(columns["requests_per_s"]) > 0
        assert columns["t"] == sorted(columns["t"])


@pytest.mark.extended
def test_unload_is_shown_while_it_happens(shared: RunningServer) -> None:
    with page(shared, RED) as red, page(shared, BLUE) as blue:
        for each in (red, blue):
            each.until("sample")
        assert shared.client.post("/models/red-m/unload", headers=RED.headers).status_code == 200
        while {each["name"]: each["state"] for each in red.until("models")["models"]}["red-m"] != "unloaded":
            pass
        assert shared.client.post("/models/red-m/load", headers=RED.headers).status_code == 200
        while {each["name"]: each["state"] for each in red.until("models")["models"]}["red-m"] != "ready":
            pass
        blue.until("sample")
        assert len([name for name, _ in blue.events if name == "models"]) == 1


def test_scopes_of_the_page(shared: RunningServer) -> None:
    paths = ("/events", "/requests", "/models/red-m/files", "/models/red-m/files/model.onnx")
    for path in paths:
        assert shared.client.get(path).status_code == 401
        assert shared.client.get(path, headers=CALLER.headers).status_code == 403
        assert shared.client.post(path, headers=RED.headers).status_code == 405
    assert shared.client.get("/folders", headers=READER.headers).status_code == 403
    folders = shared.client.get("/folders", headers=RED.headers).json()["folders"]
    assert [name for each in folders for name in each["registered_as"]].count("blue-m") == 0
    assert shared.client.head("/events", headers=RED.headers).status_code == 200


def test_requests_are_filtered(shared: RunningServer) -> None:
    infer(shared, "red-m", RED, "filtered-ok")
    infer(shared, "nothing", RED, "filtered-404")
    assert requests_of(shared, RED, "?model=red-m&limit=1")[0]["model"] == "red-m"
    assert {each["status"] for each in requests_of(shared, RED, "?status=4xx")} == {404}
    assert {each["status"] for each in requests_of(shared, RED, "?status=200")} == {200}
    assert [each["status"] for each in requests_of(shared, RED, "?id=filtered-404")] == [404]
    assert [each["status"] for each in requests_of(shared, OPERATOR, "?id=filtered-ok&model=red-m")] == [200]
    assert requests_of(shared, BLUE, "?id=filtered-ok") == []
    found = {each["id"]: each for each in requests_of(shared, RED)}
    ok, failed = found["filtered-ok"], found["filtered-404"]
    assert ok["request_bytes"] > 0
    assert ok["response_bytes"] > 0
    assert ok["error"] is None
    assert 0 < ok["compute_ms"] <= ok["total_ms"]
    assert abs(ok["ended_s"] - time.time()) < WAIT_S
    assert failed["code"] == "model_not_found"
    assert '"nothing"' in failed["error"]
    for query in ("?status=6xx", "?limit=0", "?limit=201", "?other=1", "?limit=1&limit=2"):
        assert shared.client.get(f"/requests{query}", headers=RED.headers).status_code == 400


def test_grpc_requests_are_among_them(shared: RunningServer) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{shared.grpc_port}") as channel:
        request = messages.ModelInferRequest(model_name="common")
        tensor = request.inputs.add(name="x", datatype="FP32", shape=[1])
        tensor.contents.fp32_contents.append(1.0)
        metadata = (*RED.metadata, ("x-request-id", "by-grpc"))
        GRPCInferenceServiceStub(channel).ModelInfer(request, metadata=metadata)
        failing = messages.ModelInferRequest(model_name="common", model_version="9")
        with pytest.raises(grpc.RpcError):
            GRPCInferenceServiceStub(channel).ModelInfer(
                failing, metadata=(*RED.metadata, ("x-request-id", "by-grpc-9"))
            )
    wait_until(lambda: {"by-grpc", "by-grpc-9"} <= {each["id"] for each in requests_of(shared, RED)})
    found = {each["id"]: each for each in requests_of(shared, RED)}
    assert (found["by-grpc"]["method"], found["by-grpc"]["status"]) == ("gRPC", 200)
    assert found["by-grpc"]["request_bytes"] > 0
    assert found["by-grpc"]["response_bytes"] > 0
    assert found["by-grpc-9"]["code"] == "version_not_found"
    assert found["by-grpc-9"]["error"]


def test_files_are_those_of_the_folder(shared: RunningServer) -> None:
    listed = shared.client.get("/models/red-m/files", headers=READER.headers).json()
    path = Path(shared.client.get("/models/red-m", headers=RED.headers).json()["version_details"]["1"]["path"])
    content = path.read_bytes() if path.is_file() else (path / "model.onnx").read_bytes()
    name = listed["files"][0]["path"]
    assert (listed["version"], listed["files"][0]["bytes"]) == ("1", len(content))
    url = f"/models/red-m/files/{name}"
    whole = shared.client.get(url, headers=READER.headers)
    assert (whole.status_code, whole.content) == (200, content)
    assert whole.headers["cache-control"] == "private, no-cache"
    etag = whole.headers["etag"]
    again = shared.client.get(url, headers={**READER.headers, "if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")
    part = shared.client.get(url, headers={**READER.headers, "range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, content[5:10])
    assert part.headers["content-range"] == f"bytes 5-9/{len(content)}"
    behind = shared.client.get(url, headers={**READER.headers, "range": f"bytes={len(content)}-"})
    assert (behind.status_code, behind.content) == (200, content)
    head = shared.client.head(url, headers=READER.headers)
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(content)))
    assert shared.client.get(f"{url}?version=1", headers=READER.headers).status_code == 200
    assert shared.client.get(f"{url}?version=9", headers=READER.headers).json()["error"]["code"] == "version_not_found"


@pytest.mark.parametrize(
    "path", ["..%2f..%2fkeys.toml", "%2e%2e/%2e%2e/keys.toml", "..%5ckeys.toml", "%00", "absent", "%2fetc%2fpasswd"]
)
def test_files_elsewhere_are_not_found(shared: RunningServer, path: str) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), timeout=WAIT_S) as raw:
        head = f"GET /models/red-m/files/{path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {RED.text}\r\n"
        raw.sendall(f"{head}connection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.split(b" ", 2)[1] == b"404", answer
    assert b"secret" not in answer


def test_files_need_a_downloadable_model(shared: RunningServer) -> None:
    refused = shared.client.get("/models/common/files/common.onnx", headers=RED.headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    assert "downloadable = true" in refused.json()["error"]["message"]
    hidden = shared.client.get("/models/red-m/files/model.onnx", headers=BLUE.headers)
    assert (hidden.status_code, hidden.json()["error"]["code"]) == (404, "model_not_found")
    described = {each["name"]: each for each in shared.client.get("/models", headers=RED.headers).json()["models"]}
    assert {name: each["downloadable"] for name, each in described.items()} == {"red-m": True, "common": False}


@pytest.mark.extended
def test_revoked_key_ends_its_page(shared: RunningServer) -> None:
    folder = Path(shared.client.get("/models/red-m", headers=RED.headers).json()["version_details"]["1"]["path"]).parent
    with page(shared, REVOKED) as revoked, page(shared, RED) as kept:
        for each in (revoked, kept):
            each.until("sample")
        while not (folder / "keys.toml").exists():
            folder = folder.parent
        write_keys(folder / "keys.toml", OPERATOR, RED, BLUE, READER, CALLER)
        assert revoked.until("end") == {"reason": "key"}
        with pytest.raises(EOFError):
            revoked.next()
        kept.until("sample")


def slow_reader(server: RunningServer) -> socket.socket:
    """Open a page that reads nothing, with a small buffer."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", server.port))
    raw.sendall(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
    return raw


@pytest.mark.extended
@pytest.mark.parametrize("workers", WORKERS)
def test_drain_ends_pages_at_once(start: Start, tmp_path: Path, workers: int) -> None:
    entries = onnx_entries(tmp_path, {"m": onnx_graphs.identity()})
    server = start(f"[server]\nworkers = {workers}\ndrain_timeout_s = 600\n{entries}").wait_ready()
    with page(server) as first, page(server) as second, slow_reader(server):
        for each in (first, second):
            each.until("sample")
        server.process.send_signal(signal.SIGTERM)
        for each in (first, second):
            assert each.until("end") == {"reason": "draining"}
            with pytest.raises(EOFError):
                each.next()
        # Far less than the drain timeout, or this hangs.
        assert server.process.wait(WAIT_S) == 0


@pytest.mark.extended
def test_pages_that_close_leave_nothing(start: Start, tmp_path: Path) -> None:
    server = start(onnx_entries(tmp_path, {"m": onnx_graphs.identity()})).wait_ready()
    for _ in range(70):  # more than one tenant may have at once
        with page(server) as one:
            one.until("sample")
    with page(server) as one:
        one.until("sample")
    wait_until(lambda: server.sample("roundhouse_connections") <= 2)


@pytest.mark.extended
def test_large_file_is_sent_whole(start: Start) -> None:
    entry = f'[[models.onnx_models]]\nname = "minilm"\npath = "{MODELS / "minilm-onnx"}"\ndownloadable = true\n'
    server = start(entry + 'load = "lazy"\n').wait_ready()
    content = (MODELS / "minilm-onnx" / "model.onnx").read_bytes()
    with server.client.stream("GET", "/models/minilm/files/model.onnx") as cut:
        next(cut.iter_raw())  # the client goes away in the middle
    assert server.client.get("/models/minilm/files/model.onnx").content == content
    names = {each["path"] for each in server.client.get("/models/minilm/files").json()["files"]}
    assert {"tokenizer.json", "1_Pooling/config.json", "model.onnx"} <= names
