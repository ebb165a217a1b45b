"""Find the files of models on web servers with TLS on loopback."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from extensions.sources.web import WebRemote
from frameworks.core.addresses import parse_address
from frameworks.core.errors import InvalidModel, SourceUnavailable
from frameworks.sources.contract import SourceChanged
from tests.support.web_server import WebServer, trusted_web_server


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    with trusted_web_server(tmp_path, monkeypatch) as running:
        yield running


def opened(server: WebServer, path: str) -> WebRemote:
    return WebRemote(parse_address(f"{server.url}/{path}"))


def names(server: WebServer, path: str) -> list[str]:
    return sorted(file.name for file in opened(server, path).list_files().files)


def put(server: WebServer, *paths: str, **contents: object) -> None:
    for path in paths:
        server.files[f"/{path}"] = b"12"
    for name, content in contents.items():
        server.files[f"/m/{name}.json"] = json.dumps(content).encode()


def test_folder_lists_files_with_usual_names(tls: WebServer) -> None:
    put(tls, "m/model.safetensors", "m/config.json", "m/tokenizer.json", "m/other.json", "m/pytorch_model.bin")
    assert names(tls, "m") == ["m/config.json", "m/model.safetensors", "m/tokenizer.json"]


def test_folder_with_index_lists_its_shards(tls: WebServer) -> None:
    shards = ["a-1.safetensors", "a-2.safetensors", "missing.safetensors"]
    put(tls, *(f"m/{name}" for name in shards[:2]), "secret.safetensors")
    weight_map = {"a": shards[0], "b": shards[1], "c": shards[2], "d": "../secret.safetensors", "e": ["x"], "f": 7}
    put(tls, **{"model.safetensors.index": {"weight_map": weight_map}})
    assert names(tls, "m") == ["m/a-1.safetensors", "m/a-2.safetensors", "m/model.safetensors.index.json"]
    assert not any("secret" in each.path for each in tls.requests)


def test_folder_with_whole_weights_skips_shards(tls: WebServer) -> None:
    put(tls, "m/model.safetensors", "m/a.safetensors", **{"model.safetensors.index": {"weight_map": {"a": "a"}}})
    assert names(tls, "m") == ["m/model.safetensors", "m/model.safetensors.index.json"]


def test_folder_with_modules_lists_their_files(tls: WebServer) -> None:
    modules = [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}, {"path": "../3_Other"}, {"path": 4}, 5]
    put(tls, "m/model.safetensors", "m/1_Pooling/config.json", "m/2_Dense/config.json", "m/2_Dense/model.safetensors")
    put(tls, modules=modules)
    found = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "model.safetensors"]
    assert names(tls, "m") == [f"m/{name}" for name in [*found, "modules.json"]]


@pytest.mark.parametrize("content", [[], {"weight_map": []}, {}, None, "text", 7])
def test_index_without_weight_map_has_no_shards(tls: WebServer, content: object) -> None:
    put(tls, **{"model.safetensors.index": content})
    assert names(tls, "m") == ["m/model.safetensors.index.json"]


def test_index_that_is_no_json_is_refused(tls: WebServer) -> None:
    tls.files["/m/model.safetensors.index.json"] = b"{"
    with pytest.raises(InvalidModel, match=r"index\.json: expected JSON, got another content"):
        names(tls, "m")


def test_index_with_too_many_shards_is_refused(tls: WebServer) -> None:
    weight_map = {str(number): f"{number}.safetensors" for number in range(1001)}
    put(tls, **{"model.safetensors.index": {"weight_map": weight_map}})
    with pytest.raises(InvalidModel, match="expected at most 1000 shards, got 1001"):
        names(tls, "m")


def test_folder_lists_graph_with_external_data(tls: WebServer) -> None:
    put(tls, "m/onnx/model.onnx", "m/onnx/model.onnx_data", "m/onnx/tokenizer.json", "m/config.json")
    found = ["config.json", "onnx/model.onnx", "onnx/model.onnx_data", "onnx/tokenizer.json"]
    assert names(tls, "m") == [f"m/{name}" for name in found]


def test_graph_lists_text_files_of_both_folders(tls: WebServer) -> None:
    put(tls, "m/onnx/a.onnx", "m/onnx/a.data", "m/onnx/config.json", "m/tokenizer.json", "m/1_Pooling/config.json")
    put(tls, "tokenizer.json", modules=[{"path": "1_Pooling"}])
    found = ["1_Pooling/config.json", "modules.json", "onnx/a.data", "onnx/a.onnx", "onnx/config.json"]
    assert names(tls, "m/onnx/a.onnx") == [f"m/{name}" for name in [*found, "tokenizer.json"]]


def test_graph_at_top_lists_its_folder(tls: WebServer) -> None:
    put(tls, "a.onnx", "tokenizer.json")
    assert names(tls, "a.onnx") == ["a.onnx", "tokenizer.json"]


@pytest.mark.parametrize(("path", "message"), [("m/a.onnx", r"expected an \.onnx file"), ("m", "in the folder")])
def test_absent_model_is_refused(tls: WebServer, path: str, message: str) -> None:
    with pytest.raises(InvalidModel, match=f"{message}, got none; check the address"):
        names(tls, path)


def test_page_instead_of_file_is_absent(tls: WebServer) -> None:
    put(tls, "m/a.onnx")
    tls.content_types["/m/a.onnx"] = "text/html; charset=utf-8"
    with pytest.raises(InvalidModel, match=r"expected an \.onnx file, got none"):
        names(tls, "m/a.onnx")


def test_file_without_size_is_refused(tls: WebServer) -> None:
    put(tls, "m/a.onnx")
    tls.faults.is_chunked = True
    with pytest.raises(InvalidModel, match="expected a Content-Length, got none; serve it as a static file"):
        names(tls, "m/a.onnx")


def test_file_without_validator_is_refused(tls: WebServer) -> None:
    put(tls, "m/a.onnx")
    tls.etags["/m/a.onnx"] = ""
    with pytest.raises(InvalidModel, match="expected an ETag or Last-Modified, got neither"):
        names(tls, "m/a.onnx")


@pytest.mark.parametrize("has_etags", [True, False])
def test_read_returns_bytes_from_offset(tls: WebServer, has_etags: bool) -> None:
    put(tls, "m/a.onnx")
    tls.faults.has_etags = has_etags
    remote = opened(tls, "m/a.onnx")
    (file,) = remote.list_files().files
    assert [b"".join(remote.read(file, offset)) for offset in (0, 1, 2)] == [b"12", b"2", b""]


def test_read_of_changed_file_raises_source_changed(tls: WebServer) -> None:
    put(tls, "m/a.onnx")
    remote = opened(tls, "m/a.onnx")
    (file,) = remote.list_files().files
    tls.files["/m/a.onnx"] = b"34"
    with pytest.raises(SourceChanged):
        list(remote.read(file, 1))


def test_hidden_files_are_absent(tls: WebServer) -> None:
    tls.faults.statuses = [403] * 18
    with pytest.raises(InvalidModel, match="got none; check the address and the right to read it"):
        names(tls, "m")


def test_hidden_graph_is_refused(tls: WebServer) -> None:
    tls.faults.statuses = [401]
    with pytest.raises(InvalidModel, match="got 401 Unauthorized"):
        names(tls, "m/a.onnx")


def test_busy_server_raises_source_unavailable(tls: WebServer) -> None:
    tls.faults.statuses = [503] * 4
    with pytest.raises(SourceUnavailable, match="got 503"):
        names(tls, "m")
