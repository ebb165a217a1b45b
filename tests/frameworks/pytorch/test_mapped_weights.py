"""Weights that need no conversion stay in their mapped file."""

import re
import sys
from pathlib import Path

import pytest

from frameworks.pytorch.encoders.encoder import EncoderModel
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch, rows_of
from tests.support.alike import check_alike
from tests.support.models.text_files import TEXTS
from tests.support.models.torch_folders import save_embedder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")


def mapped_ranges(folder: Path) -> list[tuple[int, int]]:
    """Return the address ranges of the folder's weight files."""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if match and str(folder) in line and line.endswith(".safetensors"):
            ranges.append((int(match[1], 16), int(match[2], 16)))
    return ranges


def share_in_files(model: EncoderModel, folder: Path) -> float:
    """Return the bytes of weights inside mapped files."""
    assert model._model is not None
    ranges = mapped_ranges(folder)
    weights = list(model._model.parameters())
    inside = [w for w in weights if any(start <= w.data_ptr() < end for start, end in ranges)]
    return sum(w.nbytes for w in inside) / sum(w.nbytes for w in weights)


@pytest.mark.parametrize("max_shard_size", ["1GB", "20KB"])
def test_weights_stay_in_their_files(made_once: FolderMaker, max_shard_size: str) -> None:
    folder = made_once(save_embedder, max_shard_size=max_shard_size)
    model = load_torch(folder, dtype="f32")
    assert share_in_files(model, folder) == 1
    model.warm_up()
    model.close()


def test_converted_weights_close_their_file(made_once: FolderMaker) -> None:
    folder = made_once(save_embedder)
    model = load_torch(folder, dtype="bf16")
    assert share_in_files(model, folder) == 0


@pytest.mark.parametrize("max_shard_size", ["1GB", "20KB"])
def test_read_weights_equal_mapped_weights(made_once: FolderMaker, max_shard_size: str) -> None:
    folder = made_once(save_embedder, max_shard_size=max_shard_size)
    read, mapped = (load_torch(folder, dtype="f32", enable_memory_mapping=on) for on in (False, True))
    assert share_in_files(read, folder) == 0
    check_alike(rows_of(read, list(TEXTS)), rows_of(mapped, list(TEXTS)))
