"""The folders of TensorRT engines: one for the content of a graph on a card."""

from pathlib import Path

import onnxruntime as ort
import pytest
from structlog.testing import capture_logs

from frameworks.onnx.cuda import engines
from frameworks.onnx.cuda.engines import engine_folder

CARD = "NVIDIA H200 (SXM)"


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"a graph")
    return file


def test_folder_has_card_and_version(tmp_path: Path, graph: Path) -> None:
    folder = engine_folder(tmp_path / "cache", [graph], CARD)
    assert folder is not None
    assert (folder.parent, folder.is_dir()) == (tmp_path / "cache" / "tensorrt", True)
    contents, _, rest = folder.name.partition("-")
    assert (len(contents), rest) == (32, "nvidia-h200-sxm-v1")


def test_moved_graph_finds_its_folder(tmp_path: Path, graph: Path) -> None:
    moved = tmp_path / "other.onnx"
    moved.write_bytes(graph.read_bytes())
    assert engine_folder(tmp_path, [moved], CARD) == engine_folder(tmp_path, [graph], CARD)


def test_each_change_has_a_folder(tmp_path: Path, graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [engine_folder(tmp_path, [graph], CARD), engine_folder(tmp_path, [graph], "Tesla T4")]
    data = tmp_path / "model.data"
    data.write_bytes(b"weights")
    folders.append(engine_folder(tmp_path, [graph, data], CARD))
    monkeypatch.setattr(engines, "version", lambda _: "11.2.0")
    folders.append(engine_folder(tmp_path, [graph], CARD))
    monkeypatch.setattr(ort, "__version__", "9.9.9")
    folders.append(engine_folder(tmp_path, [graph], CARD))
    graph.write_bytes(b"another graph")
    folders.append(engine_folder(tmp_path, [graph], CARD))
    assert len(set(folders)) == 6


@pytest.mark.parametrize("card", ["", "///", "x" * 500])
def test_any_card_gives_a_file_name(tmp_path: Path, graph: Path, card: str) -> None:
    folder = engine_folder(tmp_path, [graph], card)
    assert folder is not None
    assert folder.parent == tmp_path / "tensorrt"


def test_unwritable_folder_warns_and_keeps_none(tmp_path: Path, graph: Path) -> None:
    cache_dir = tmp_path / "file"
    cache_dir.write_bytes(b"")
    with capture_logs() as logs:
        assert engine_folder(cache_dir, [graph], CARD) is None
    [entry] = logs
    assert (entry["log_level"], entry["remedy"]) == ("warning", "make models.cache_dir writable")
