"""Weights that need no conversion are not copied: they stay in the file, and the kernel brings in what is read."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from frameworks.pytorch.encoder import EncoderModel
from tests.frameworks.conftest import FolderMaker
from tests.frameworks.models.loading import load_torch, rows_of
from tests.support.models.text_files import TEXTS
from tests.support.models.torch_folders import save_embedder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")


def mapped_ranges(folder: Path) -> list[tuple[int, int]]:
    """Where in this process's memory the folder's weight files lie."""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if match and str(folder) in line and line.endswith(".safetensors"):
            ranges.append((int(match[1], 16), int(match[2], 16)))
    return ranges


def share_in_files(model: EncoderModel, folder: Path) -> float:
    """How much of the weights, by bytes, lies in mapped files."""
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


def test_weights_of_another_type_are_converted_and_the_file_let_go(made_once: FolderMaker) -> None:
    folder = made_once(save_embedder)
    model = load_torch(folder, dtype="bf16")
    assert share_in_files(model, folder) == 0


@pytest.mark.parametrize("max_shard_size", ["1GB", "20KB"])
def test_without_mapping_weights_are_read_and_are_the_same(made_once: FolderMaker, max_shard_size: str) -> None:
    folder = made_once(save_embedder, max_shard_size=max_shard_size)
    read, mapped = (load_torch(folder, dtype="f32", enable_memory_mapping=on) for on in (False, True))
    assert share_in_files(read, folder) == 0
    np.testing.assert_array_equal(rows_of(read, list(TEXTS)), rows_of(mapped, list(TEXTS)))
