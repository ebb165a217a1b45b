"""Test the hub's repositories, against a hub on loopback: lists, bytes, tokens, revisions and faults."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from frameworks.core.addresses import parse_address
from frameworks.core.errors import InvalidModel, SourceUnavailable
from frameworks.sources import offline
from frameworks.sources.contract import SourceChanged
from frameworks.sources.hub import HubRemote
from frameworks.sources.store import SourceStore
from tests.support.hub import Hub, loopback_hub

TOKEN = "hf_secret"
FILES = {
    "config.json": b"{}",
    "model.safetensors": bytes(range(256)) * 1000,
    "pytorch_model.bin": b"pickle",
    "onnx/model.onnx": b"graph" * 1000,
    "onnx/model.onnx_data": b"data" * 1000,
    "code.py": b"code",
    "a b?#%é.json": b"[]",
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with loopback_hub() as running:
        monkeypatch.setattr(offline, "IS_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.get_token", lambda: TOKEN)
        monkeypatch.setenv("HF_ENDPOINT", running.web.url + "/")
        yield running


@pytest.fixture
def commit(hub: Hub) -> str:
    return hub.publish("org/name", FILES, "main", "v1.0")


@pytest.fixture
def store(tmp_path: Path) -> SourceStore:
    return SourceStore(tmp_path, 1 << 20, retry_delays_s=(0, 0))


def remote(address: str = "hf://org/name") -> HubRemote:
    return HubRemote(parse_address(address))


@pytest.mark.parametrize("revision", ["", "@main", "@v1.0"])
def test_list_has_commit_and_hashes(commit: str, revision: str) -> None:
    listing = remote(f"hf://org/name{revision}").list_files()
    files = {file.name: file for file in listing.files}
    assert listing.revision == commit
    assert {name: file.size for name, file in files.items()} == {name: len(each) for name, each in FILES.items()}
    assert (files["config.json"].sha256, files["model.safetensors"].git_sha1) == (None, None)
    assert files["config.json"].git_sha1 == "9e26dfeeb6e641a33dae4961196235bdb965b21b"


def test_read_returns_bytes_from_offset(hub: Hub, commit: str) -> None:
    source = remote()
    for file in source.list_files().files:
        assert b"".join(source.read(file, 0)) == FILES[file.name]
        assert b"".join(source.read(file, 1)) == FILES[file.name][1:]
    assert all(commit in each.path for each in hub.web.requests if "/resolve/" in each.path)


def test_token_is_sent_to_hub(hub: Hub, commit: str) -> None:
    hub.web.faults.token = TOKEN
    source = remote()
    for file in source.list_files().files[:2]:
        assert b"".join(source.read(file, 0)) == FILES[file.name]
    tokens = {each.path.split("/")[1]: each.headers.get("authorization") for each in hub.web.requests}
    assert tokens == {"api": f"Bearer {TOKEN}", "org": f"Bearer {TOKEN}", "cdn": None}


def test_missing_token_names_variable(hub: Hub, commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.web.faults.token = TOKEN
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(InvalidModel, match=r"got 401 Repository not found; .* HF_TOKEN for a private or gated model"):
        remote().list_files()


def test_unreadable_token_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise RuntimeError(TOKEN)

    monkeypatch.setattr("huggingface_hub.get_token", fail)
    with pytest.raises(InvalidModel, match="got RuntimeError") as caught:
        remote()
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("token", ["a\r\nb", "", "é"])
def test_token_with_other_characters_is_refused(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: f"{TOKEN}{token}" if token else token)
    with pytest.raises(InvalidModel, match="HF_TOKEN: expected letters") as caught:
        remote()
    assert TOKEN not in str(caught.value)


def test_endpoint_without_scheme_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "hub.example.org")
    with pytest.raises(InvalidModel, match="HF_ENDPOINT: expected https://host"):
        remote()


@pytest.mark.parametrize("address", ["hf://org/other", "hf://org/name@v2"])
def test_unknown_model_or_revision_is_refused(commit: str, address: str) -> None:
    with pytest.raises(InvalidModel, match="got no such model or revision"):
        remote(address).list_files()


def test_offline_variable_makes_hub_unavailable(
    hub: Hub, commit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offline, "IS_HUB_OFFLINE", True)
    store = SourceStore(tmp_path, 1 << 20, retry_delays_s=(1e9,))
    with pytest.raises(SourceUnavailable, match="HF_HUB_OFFLINE=1; the cache has no copy"):
        store.fetch(parse_address("hf://org/name"), None)
    assert not hub.web.requests


SIBLING: dict[str, object] = {"rfilename": "a", "size": 1, "blobId": "0" * 40}


CHANGES: list[dict[str, object]] = [
    {"size": None}, {"size": -1}, {"size": True}, {"rfilename": 3}, {"blobId": "x"}, {"lfs": {}},
    {"lfs": {"sha256": "x"}},
]  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        b"", b"<html>", b"[]", b"{}", pytest.param(b"[" * 100_000, id="deep"),
        {"sha": "main", "siblings": []}, {"sha": "0" * 40},
        *({"sha": "0" * 40, "siblings": [SIBLING | each]} for each in CHANGES),
    ],
)  # fmt: skip
def test_other_answer_is_refused(hub: Hub, commit: str, answer: object) -> None:
    body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    hub.web.files["/api/models/org/name"] = body
    with pytest.raises(InvalidModel, match="hf://org/name: expected"):
        remote().list_files()


def test_other_commit_than_asked_is_refused(hub: Hub, commit: str) -> None:
    hub.web.files[f"/api/models/org/name/revision/{'1' * 40}"] = hub.web.files["/api/models/org/name/revision/main"]
    with pytest.raises(InvalidModel, match=f"expected this commit from the hub, got {commit}"):
        remote(f"hf://org/name@{'1' * 40}").list_files()


def test_removed_file_raises_source_changed(hub: Hub, commit: str) -> None:
    source = remote()
    file = source.list_files().files[0]
    del hub.web.files[hub.path("org/name", commit, file.name)]
    with pytest.raises(SourceChanged):
        list(source.read(file, 0))


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("hf://org/name", {"config.json", "model.safetensors"}),
        ("hf://org/name/onnx", {"config.json", "model.onnx", "model.onnx_data"}),
        ("hf://org/name@v1.0/onnx/model.onnx", {"config.json", "model.onnx", "model.onnx_data"}),
    ],
)
def test_store_fetches_served_files(store: SourceStore, commit: str, address: str, names: set[str]) -> None:
    fetched = store.fetch(parse_address(address), None)
    assert {file.name for file in fetched.folder.iterdir()} == names | {".roundhouse.json"}
    assert fetched.revision == commit


def test_cut_downloads_are_resumed(store: SourceStore, hub: Hub, commit: str) -> None:
    hub.web.faults.cut_after, hub.web.faults.cuts = 100_000, 2
    fetched = store.fetch(parse_address("hf://org/name"), "pytorch")
    assert (fetched.folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    ranges = [each.headers.get("range") for each in hub.web.requests if each.path.startswith("/cdn/")]
    assert ranges == [None, "bytes=100000-", "bytes=200000-"]


def test_wrong_bytes_are_refused(store: SourceStore, hub: Hub, commit: str) -> None:
    hub.web.files[hub.path("org/name", commit, "model.safetensors")] = FILES["model.safetensors"][::-1]
    with pytest.raises(InvalidModel, match=r"model\.safetensors: expected the content that the source lists"):
        store.fetch(parse_address("hf://org/name"), "pytorch")


def test_hub_that_is_down_serves_cache(store: SourceStore, hub: Hub, commit: str) -> None:
    first = store.fetch(parse_address("hf://org/name"), "pytorch")
    hub.web.faults.is_offline = True
    assert store.fetch(parse_address("hf://org/name"), "pytorch").folder == first.folder
    with pytest.raises(SourceUnavailable, match="the cache has no copy"):
        store.fetch(parse_address("hf://org/name/onnx"), "onnx")


def test_commit_in_cache_asks_nothing(store: SourceStore, hub: Hub, commit: str) -> None:
    address = parse_address(f"hf://org/name@{commit}")
    store.fetch(address, None)
    hub.web.requests.clear()
    assert store.fetch(address, "pytorch").is_cached
    assert not hub.web.requests


def test_pytorch_keeps_switch_of_user() -> None:
    code = "import frameworks.pytorch, os; from frameworks.sources import offline; "
    code += "assert os.environ['HF_HUB_OFFLINE'] == '1'; print(offline.IS_HUB_OFFLINE)"
    for value, expected in (("0", "False"), ("true", "True")):
        environment = {"HF_HUB_OFFLINE": value, "PYTHONPATH": str(Path(__file__).parents[3])}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


def test_opening_store_imports_no_packages() -> None:
    code = "import sys; import frameworks.sources.store; "
    code += "print([each for each in ('huggingface_hub', 'fsspec', 's3fs', 'httpx') if each in sys.modules])"
    environment = {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_loopback_hub_serves_its_own_client(hub: Hub, commit: str, tmp_path: Path) -> None:
    """Compare with huggingface_hub's own requests, which are switched off in this process."""
    code = (
        "import sys; from huggingface_hub import HfApi, hf_hub_download; "
        "info = HfApi().model_info('org/name', files_metadata=True); "
        "print([info.sha, sorted((s.rfilename, s.size, s.blob_id, s.lfs and s.lfs.sha256) for s in info.siblings)]); "
        "[print(hf_hub_download('org/name', name, revision=info.sha)) for name in ('config.json', 'model.safetensors')]"
    )
    environment = {**hub.environment, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    environment |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    listed, *paths = done.stdout.splitlines()[-3:]
    files = remote().list_files().files
    expected = sorted((each.name, each.size, each.etag, each.sha256) for each in files)
    assert listed == str([commit, expected])
    assert [Path(path).read_bytes() for path in paths] == [FILES["config.json"], FILES["model.safetensors"]]
