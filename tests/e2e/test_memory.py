"""The resident set of a real server falls after an unload, and stays flat over many loads."""

import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from onnx import helper

from tests.e2e.configs import DIGITS
from tests.e2e.server import RunningServer, serving
from tests.support.models import onnx_graphs

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="measures the allocator of glibc"),
    pytest.mark.extended,
]

LOADS = pytest.mark.parametrize("loads", [8, pytest.param(50, marks=pytest.mark.nightly)])
_TEXT_MODEL = """
[[models.torch_models]]
name = "small"
path = "small"
[memory]
enable_memory_mapping = false
"""


def save_layers(folder: Path, size: int, layers: int) -> None:
    """Save a graph x [n, size] → y [n, size] through `layers` square matrices."""
    folder.mkdir()
    # Random numbers take long; ONNX Runtime keeps equal matrices once.
    weights = {f"w{i}": np.full((size, size), i + 1, np.float32) for i in range(layers)}
    nodes = [
        helper.make_node("MatMul", [f"y{i - 1}" if i else "x", f"w{i}"], ["y" if i == layers - 1 else f"y{i}"])
        for i in range(layers)
    ]
    declared = [(name, "float32", ("n", size)) for name in ("x", "y")]
    onnx_graphs.save(onnx_graphs.model_of(nodes, declared[:1], declared[1:], weights), folder)


def save_encoder(folder: Path, layers: int) -> None:
    """Save an encoder of 28 MB a layer."""
    import torch
    from transformers import BertConfig, BertModel

    from tests.support.models.text_files import VOCABULARY_SIZE, write_tokenizer

    config = BertConfig(vocab_size=VOCABULARY_SIZE, num_hidden_layers=layers, max_position_embeddings=40)
    with torch.device("meta"):  # random numbers take long
        model = BertModel(config)
    model.to_empty(device="cpu").requires_grad_(False)
    for weights in model.parameters():
        weights.zero_()
    model.save_pretrained(folder)
    write_tokenizer(folder)


def resident_bytes(server: RunningServer) -> int:
    resident: int = psutil.Process(server.process.pid).memory_info().rss
    return resident


def change(server: RunningServer, name: str, to: str) -> None:
    assert server.post(f"/models/{name}/{to}", b"").status_code == 200


def assert_memory_is_returned(server: RunningServer, framework: str, large: Path, question: dict[str, object]) -> None:
    """Check that the unload of a large model returns 95 % of its memory. The framework is imported already."""
    change(server, "small", "unload")
    before = resident_bytes(server)
    entry = {"framework": framework, "name": "large", "path": str(large)}
    assert server.client.post("/models", json=entry).status_code == 201
    server.infer("large", **question)
    loaded = resident_bytes(server)
    assert loaded - before > 150e6
    change(server, "large", "unload")
    assert loaded - resident_bytes(server) >= 0.95 * (loaded - before)


def assert_memory_stays_flat(server: RunningServer, question: dict[str, object], loads: int) -> None:
    """Check that the resident set after the last unload is within a tenth of that after the fifth."""
    after = []
    for _ in range(loads):
        change(server, "small", "load")
        server.infer("small", **question)
        change(server, "small", "unload")
        after.append(resident_bytes(server))
    assert after[-1] <= 1.1 * after[4], [f"{size / 1e6:.0f} MB" for size in after]


@LOADS
def test_onnx_graph_memory_returned_after_unload(loads: int, tmp_path: Path) -> None:
    save_layers(tmp_path / "small", 1024, 4)
    save_layers(tmp_path / "large", 2048, 12)  # malloc does not map each of its tensors
    entry = f'[[models.onnx_models]]\nname = "small"\npath = "{tmp_path / "small"}"\n'
    with serving(tmp_path, f'[models]\nroots = ["{tmp_path}"]\n{DIGITS}{entry}', is_fork=False) as server:
        server.wait_ready()
        assert_memory_is_returned(server, "onnx", tmp_path / "large", {"input_data": [1.0] * 2048})
        assert_memory_stays_flat(server, {"input_data": [1.0] * 1024}, loads)


@LOADS
def test_pytorch_encoder_memory_returned_after_unload(loads: int, tmp_path: Path) -> None:
    save_encoder(tmp_path / "small", 1)
    save_encoder(tmp_path / "large", 7)
    with serving(tmp_path, f'[models]\nroots = ["{tmp_path}"]\n{_TEXT_MODEL}', is_fork=False) as server:
        server.wait_ready()
        assert_memory_is_returned(server, "pytorch", tmp_path / "large", {"text": ["the cat"] * 8})
        assert_memory_stays_flat(server, {"text": ["the cat"] * 8}, loads)
