"""Where the kernels are used, and where their compiled code is kept."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
import torch

from frameworks.core.settings.performance import PerformanceSettings
from frameworks.pytorch import device_kernels
from frameworks.pytorch.compiled.cache import code_cache
from frameworks.pytorch.device_kernels import code_folder, launcher
from frameworks.pytorch.registry import TorchRegistry
from frameworks.quantization.copies import QuantizedCopies

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _of_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Ampere card, with all that Triton needs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(launcher, "failure", lambda: None)
    monkeypatch.setattr(device_kernels, "_folder", None)


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


def test_launcher_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "failure", lambda: "install gcc and python3-dev")
    assert device_kernels.unavailable_because(CUDA) == "install gcc and python3-dev"


def test_server_without_cuda_imports_no_triton(tmp_path: Path) -> None:
    """Neither a folder nor a variable is made."""
    script = (
        "import os, sys; from pathlib import Path; import torch; from frameworks.pytorch import device_kernels as own\n"
        "own.set_code_folder(Path(sys.argv[1]))\n"
        "assert own.unavailable_because(torch.device('cpu')) == 'the device has no Triton'\n"
        "assert 'triton' not in sys.modules and 'TRITON_CACHE_DIR' not in os.environ\n"
    )
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    subprocess.run([sys.executable, "-c", script, tmp_path / "triton"], env=ours, check=True)
    assert not (tmp_path / "triton").exists()


class TestCache:
    @pytest.fixture(autouse=True)
    def _without_folder(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRITON_CACHE_DIR", "")
        monkeypatch.delenv("TRITON_CACHE_DIR")

    def test_code_is_kept_in_folder(self, tmp_path: Path) -> None:
        code_folder.keep_code_in(tmp_path / "cache" / "triton")
        assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "cache" / "triton")
        assert (tmp_path / "cache" / "triton").is_dir()

    def test_folder_is_set_before_launcher(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = []
        monkeypatch.setattr(code_cache, "_folder", None)  # the registry sets it too
        monkeypatch.setattr(launcher, "failure", lambda: found.append(os.environ["TRITON_CACHE_DIR"]))
        TorchRegistry(PerformanceSettings(), None, QuantizedCopies(tmp_path))
        assert device_kernels.are_available(CUDA)
        assert found == [str(tmp_path / "triton")]

    def test_folder_of_environment_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
        code_folder.keep_code_in(tmp_path / "triton")
        assert os.environ["TRITON_CACHE_DIR"] == "/elsewhere"

    def test_folder_that_cannot_be_made_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        _check_replaced(tmp_path / "file" / "triton")

    def test_folder_for_all_users_is_replaced(self, tmp_path: Path) -> None:
        """Triton would load what another user puts there."""
        (tmp_path / "triton").mkdir()
        (tmp_path / "triton").chmod(0o777)
        _check_replaced(tmp_path / "triton")

    def test_folder_of_other_user_is_replaced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "triton").mkdir()
        monkeypatch.setattr(os, "geteuid", lambda: (tmp_path / "triton").stat().st_uid + 1)
        _check_replaced(tmp_path / "triton")

    def test_rights_of_group_are_removed(self, tmp_path: Path) -> None:
        (tmp_path / "triton").mkdir()
        (tmp_path / "triton").chmod(0o2775)
        code_folder.keep_code_in(tmp_path / "triton")
        assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
        assert (tmp_path / "triton").stat().st_mode & 0o777 == 0o700


def _check_replaced(folder: Path) -> None:
    """Check that a temporary folder takes the code, and that the log says so."""
    with structlog.testing.capture_logs() as logs:
        code_folder.keep_code_in(folder)
    found = Path(os.environ["TRITON_CACHE_DIR"])
    assert found.name.startswith("roundhouse-triton-")
    assert found.stat().st_mode & 0o777 == 0o700
    found.rmdir()
    (entry,) = logs
    assert (entry["log_level"], entry["folder"]) == ("warning", str(folder))
    assert "models.cache_dir" in entry["remedy"]
