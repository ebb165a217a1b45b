"""Fetch models from an S3 server and a web server on loopback: resumed, changed meanwhile, and without the server."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.extension import open_remote
from frameworks.core.addresses import SourceAddress, parse_address
from frameworks.core.errors import InvalidModel, SourceUnavailable
from frameworks.sources.contract import CHUNK_BYTES, Listing, Remote, RemoteFile
from frameworks.sources.store import Cancelled, Fetched, Progress, SourceStore
from tests.support.s3_server import S3Server, running_s3
from tests.support.web_server import WebServer, trusted_web_server

WEIGHTS = bytes(range(256)) * (4 * CHUNK_BYTES // 256)
OTHER_WEIGHTS = WEIGHTS[::-1]
MAX_BYTES = 100 * CHUNK_BYTES
BOUND_S = 60


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Return the address of a folder with a model of sentence-transformers, a pickle and code."""
    s3.set_environment(monkeypatch)
    name = f"b-{tmp_path.name.lower().replace('_', '-')[:50]}".rstrip("-")
    files = dict.fromkeys(("config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"), b"{}")
    files |= {"model.safetensors": WEIGHTS, "pytorch_model.bin": b"pickle", "modeling.py": b"code"}
    s3.make_bucket(name, {f"m/{path}": content for path, content in files.items()} | {"other": b"x"})
    return f"s3://{name}/m"


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    with trusted_web_server(tmp_path, monkeypatch) as running:
        running.files["/m/a.onnx"] = WEIGHTS
        running.files["/m/a.onnx.data"] = OTHER_WEIGHTS
        running.files["/tokenizer.json"] = b"{}"
        yield running


class Watched:
    """A remote that calls a function after each chunk of the weights. `chunks`: counts them."""

    def __init__(self, remote: Remote, after_chunk: Callable[[int], None]) -> None:
        self._remote = remote
        self._after_chunk = after_chunk
        self._chunks = 0

    def list_files(self) -> Listing:
        return self._remote.list_files()

    def read(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        for chunk in self._remote.read(file, offset):
            yield chunk
            if file.size == len(WEIGHTS):
                self._chunks += 1
                self._after_chunk(self._chunks)

    def close(self) -> None:
        self._remote.close()


def store_in(folder: Path, after_chunk: Callable[[int], None] | None = None) -> SourceStore:
    def open_watched(address: SourceAddress) -> Remote:
        remote = open_remote(address)
        return Watched(remote, after_chunk) if after_chunk else remote

    return SourceStore(folder / "cache", MAX_BYTES, open_watched, retry_delays_s=(0.0, 0.0))


def contents(fetched: Fetched) -> dict[str, bytes]:
    files = (each for each in fetched.folder.rglob("*") if each.is_file() and each.name != ".roundhouse.json")
    return {each.relative_to(fetched.folder).as_posix(): each.read_bytes() for each in files}


def cancelled_after_first_chunk(folder: Path, address: str) -> int:
    """Cancel a fetch after a chunk; return the bytes that it received."""
    is_cancelled = threading.Event()
    progress = Progress()
    store = store_in(folder, lambda _: is_cancelled.set())
    with pytest.raises(Cancelled):
        store.fetch(parse_address(address), None, progress, is_cancelled)
    return progress.received_bytes


def test_bucket_is_fetched_without_pickles(bucket: str, tmp_path: Path) -> None:
    fetched = store_in(tmp_path).fetch(parse_address(bucket), None)
    assert fetched.framework == "pytorch"
    found = contents(fetched)
    assert sorted(found) == [
        "1_Pooling/config.json",
        "config.json",
        "model.safetensors",
        "modules.json",
        "tokenizer.json",
    ]
    assert found["model.safetensors"] == WEIGHTS


def test_bucket_resumes_after_cancellation(bucket: str, tmp_path: Path) -> None:
    received = cancelled_after_first_chunk(tmp_path, bucket)
    assert 0 < received < len(WEIGHTS)
    fetched = store_in(tmp_path).fetch(parse_address(bucket), None)
    assert contents(fetched)["model.safetensors"] == WEIGHTS
    assert 0 < fetched.downloaded_bytes <= len(WEIGHTS) + 8 - received


def test_changed_object_is_fetched_from_its_start(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    address = parse_address(bucket)
    is_changed = threading.Event()

    def change(_: int) -> None:
        if not is_changed.is_set():
            is_changed.set()
            s3.client.put_object(Bucket=address.repository, Key="m/model.safetensors", Body=OTHER_WEIGHTS)

    fetched = store_in(tmp_path, change).fetch(address, None)
    assert is_changed.is_set()
    assert contents(fetched)["model.safetensors"] == OTHER_WEIGHTS


def test_changed_object_is_not_mixed_after_resumption(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    address = parse_address(bucket)
    cancelled_after_first_chunk(tmp_path, bucket)
    s3.client.put_object(Bucket=address.repository, Key="m/model.safetensors", Body=OTHER_WEIGHTS)
    assert contents(store_in(tmp_path).fetch(address, None))["model.safetensors"] == OTHER_WEIGHTS


def test_cached_bucket_is_used_without_server(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = store_in(tmp_path).fetch(parse_address(bucket), "pytorch")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    second = store_in(tmp_path).fetch(parse_address(bucket), "pytorch")
    assert (second.folder, second.is_cached) == (first.folder, True)
    with pytest.raises(SourceUnavailable):
        store_in(tmp_path / "empty").fetch(parse_address(bucket), "pytorch")


def test_unchanged_bucket_downloads_nothing(bucket: str, tmp_path: Path) -> None:
    first = store_in(tmp_path).fetch(parse_address(bucket), None)
    second = store_in(tmp_path).fetch(parse_address(bucket), None)
    assert (second.folder, second.downloaded_bytes) == (first.folder, 0)


def test_too_large_bucket_is_refused_before_download(bucket: str, tmp_path: Path) -> None:
    store = SourceStore(tmp_path, CHUNK_BYTES, open_remote, retry_delays_s=())
    with pytest.raises(InvalidModel, match="max_download_bytes"):
        store.fetch(parse_address(bucket), None)
    assert not list(tmp_path.rglob("*.part"))


def test_graph_of_web_server_is_fetched(web: WebServer, tmp_path: Path) -> None:
    fetched = store_in(tmp_path).fetch(parse_address(f"{web.url}/m/a.onnx"), None)
    assert fetched.framework == "onnx"
    expected = {"model.onnx": WEIGHTS, "a.onnx.data": OTHER_WEIGHTS, "tokenizer.json": b"{}"}
    assert contents(fetched) == expected


def test_web_server_resumes_with_range(web: WebServer, tmp_path: Path) -> None:
    received = cancelled_after_first_chunk(tmp_path, f"{web.url}/m/a.onnx")
    web.requests.clear()
    fetched = store_in(tmp_path).fetch(parse_address(f"{web.url}/m/a.onnx"), None)
    assert contents(fetched)["model.onnx"] == WEIGHTS
    assert contents(fetched)["a.onnx.data"] == OTHER_WEIGHTS
    assert fetched.downloaded_bytes == len(WEIGHTS) + len(OTHER_WEIGHTS) + 2 - received
    assert len([each for each in web.requests if "range" in each.headers]) == 1


@pytest.mark.parametrize("has_etags", [True, False])
def test_changed_file_of_web_server_is_not_mixed(web: WebServer, tmp_path: Path, has_etags: bool) -> None:
    cancelled_after_first_chunk(tmp_path, f"{web.url}/m/a.onnx")
    web.faults.has_etags = has_etags
    web.files |= {"/m/a.onnx": OTHER_WEIGHTS, "/m/a.onnx.data": WEIGHTS}
    found = contents(store_in(tmp_path).fetch(parse_address(f"{web.url}/m/a.onnx"), None))
    assert (found["model.onnx"], found["a.onnx.data"]) == (OTHER_WEIGHTS, WEIGHTS)


def test_cut_connections_are_resumed(web: WebServer, tmp_path: Path) -> None:
    web.faults.cut_after = len(WEIGHTS) // 2
    web.faults.cuts = 2
    found = contents(store_in(tmp_path).fetch(parse_address(f"{web.url}/m/a.onnx"), None))
    assert (found["model.onnx"], found["a.onnx.data"]) == (WEIGHTS, OTHER_WEIGHTS)


def test_download_resumes_after_kill(web: WebServer, tmp_path: Path) -> None:
    web.faults.hold_after = CHUNK_BYTES
    address = f"{web.url}/m/a.onnx"
    code = (
        "import sys; from pathlib import Path; from frameworks.core.addresses import parse_address; "
        "from app.extension import open_remote; from frameworks.sources.store import SourceStore; "
        "SourceStore(Path(sys.argv[1]), 1 << 40, open_remote).fetch(parse_address(sys.argv[2]), None)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "cache"), address]) as process:
        try:
            wait_for(lambda: sum(each.stat().st_size for each in tmp_path.rglob("*.part")) > 0)
        finally:
            process.kill()
    web.faults.hold_after = None
    web.faults.go_on.set()
    web.requests.clear()
    fetched = store_in(tmp_path).fetch(parse_address(address), None)
    assert contents(fetched)["model.onnx"] == WEIGHTS
    assert contents(fetched)["a.onnx.data"] == OTHER_WEIGHTS
    assert any("range" in each.headers for each in web.requests)


def test_cached_web_model_is_used_without_server(web: WebServer, tmp_path: Path) -> None:
    address = parse_address(f"{web.url}/m/a.onnx")
    first = store_in(tmp_path).fetch(address, "onnx")
    web.faults.statuses = [503] * 1000
    second = store_in(tmp_path).fetch(address, "onnx")
    assert (second.folder, second.is_cached) == (first.folder, True)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.02)
