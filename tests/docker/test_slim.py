"""docker/slim.py: files that leave the packages of an image."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.docker.files import DOCKER


@pytest.fixture(scope="module")
def slim() -> ModuleType:
    """Return docker/slim.py as a module."""
    spec = importlib.util.spec_from_file_location("slim", DOCKER / "slim.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make(packages: Path, *names: str) -> None:
    """Make empty files."""
    for name in names:
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).touch()


def test_unused_files_removed_and_others_kept(slim: ModuleType, tmp_path: Path) -> None:
    make(tmp_path, "numpy/core.py", "numpy/core.pyi", "numpy/tests/test_x.py", "numpy/lib/tests/deep/tests/test_x.py")
    make(tmp_path, "torch/bin/torch_shm_manager", "torch/bin/test_api", "torch/include/ATen/a.h", "torch/nn/module.py")
    make(tmp_path, "torch/share/cmake/c.cmake", "torch/test/a.py")
    make(tmp_path, "botocore/data/s3/a.json", "botocore/data/ec2/a.json", "botocore/data/endpoints.json")
    slim.slim(tmp_path)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {
        "numpy/core.py",
        "torch/bin/torch_shm_manager",
        "torch/nn/module.py",
        "botocore/data/s3/a.json",
        "botocore/data/endpoints.json",
    }


def test_pattern_without_match_is_refused(slim: ModuleType, tmp_path: Path) -> None:
    make(tmp_path, "numba/__init__.py")
    with pytest.raises(ValueError, match=r"^numba/cuda: expected a match in installed numba, got none; mend"):
        slim.slim(tmp_path)


def test_library_with_moved_segment_is_not_loadable(slim: ModuleType) -> None:
    header = bytearray(120)
    header[32:40] = (64).to_bytes(8, "little")  # one program header, after the ELF header
    header[54:58] = (56).to_bytes(2, "little") + (1).to_bytes(2, "little")
    header[64] = slim.PT_LOAD
    header[112:120] = (0x1000).to_bytes(8, "little")
    header[72:80] = (0x2010).to_bytes(8, "little")
    header[80:88] = (0x5010).to_bytes(8, "little")
    assert slim.loads(bytes(header))
    header[72:80] = (0x2018).to_bytes(8, "little")
    assert not slim.loads(bytes(header))


@pytest.mark.skipif(shutil.which("strip") is None, reason="needs strip of binutils")
def test_stripped_module_is_smaller_and_works(slim: ModuleType, tmp_path: Path) -> None:
    (library,) = Path(np.__file__).parent.glob("random/mtrand.cpython-*.so")
    copy = tmp_path / library.name
    shutil.copy(library, copy)
    slim.strip(copy)
    assert [path.name for path in tmp_path.iterdir()] == [library.name]
    assert copy.stat().st_size <= library.stat().st_size
    loaded = f"import ctypes; ctypes.PyDLL({str(copy)!r})"
    assert subprocess.run([sys.executable, "-c", loaded], check=False, timeout=300).returncode == 0
