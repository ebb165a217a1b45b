"""Where the kernels are used, and where their compiled code is kept."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
import torch

from frameworks.pytorch import device_kernels

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _of_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Ampere card, with all that Triton needs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(Path, "is_file", lambda self: True)


def test_ampere_uses_kernels() -> None:
    assert device_kernels.are_available(CUDA)


@pytest.mark.parametrize("kind", ["cpu", "mps", "meta"])
def test_other_devices_use_none(kind: str) -> None:
    assert not device_kernels.are_available(torch.device(kind))


def test_older_card_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert device_kernels.unavailable_because(CUDA) == "compute capability 7.5 is below 8.0"


def test_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert device_kernels.unavailable_because(CUDA) == "Triton is not installed"


@pytest.mark.parametrize("is_missing", ["compiler", "headers"])
def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, is_missing: str) -> None:
    if is_missing == "compiler":
        monkeypatch.delenv("CC")
        monkeypatch.setattr(shutil, "which", lambda name: None)
    else:
        monkeypatch.setattr(Path, "is_file", lambda self: False)
    reason = device_kernels.unavailable_because(CUDA)
    assert reason is not None
    assert "install gcc and python3-dev" in reason


class TestCache:
    @pytest.fixture(autouse=True)
    def _without_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRITON_CACHE_DIR", "")
        monkeypatch.delenv("TRITON_CACHE_DIR")

    def test_code_is_kept_in_folder(self, tmp_path: Path) -> None:
        device_kernels.keep_code_in(tmp_path / "cache" / "triton")
        assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "cache" / "triton")
        assert (tmp_path / "cache" / "triton").is_dir()

    def test_folder_of_environment_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
        device_kernels.keep_code_in(tmp_path / "triton")
        assert os.environ["TRITON_CACHE_DIR"] == "/elsewhere"

    def test_folder_that_cannot_be_made_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        device_kernels.keep_code_in(tmp_path / "file" / "triton")
        found = Path(os.environ["TRITON_CACHE_DIR"])
        assert found.name.startswith("roundhouse-triton-")
        found.rmdir()
