"""The launcher of Triton is compiled with the compiler of this machine, taken from an image, or named as missing.

Each load is a process of its own, beside a library with the names of CUDA's driver: no test needs a GPU.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has packages for Linux only")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

from tests.docker.kernel_image import builder  # noqa: E402
from tests.e2e.server import ROOT  # noqa: E402

COMPILER_MISSING = (
    "Triton needs a C compiler and the headers of Python; install gcc and python3-dev, or use the server's image"
)
LOAD = """
import ctypes, json, sys
from pathlib import Path
from frameworks.pytorch.device_kernels import code_folder, launcher
driver, folder, launcher.PREBUILT = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
ctypes.CDLL(driver)
code_folder.keep_code_in(folder)
reason = launcher.failure()
made = []
if reason is None:
    from triton.backends.nvidia.driver import CudaDriver, CudaUtils
    launcher.subprocess.check_call = None  # a second load compiles nothing
    made = list(CudaUtils().build_signature_metadata(["*fp32", "i32"]))
print(json.dumps([reason, made, sorted(each.name for each in folder.rglob("*.so"))]))
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the launcher of an image, and with a driver: `launchers` and `libcuda.so.1`."""
    folder = tmp_path_factory.mktemp("image")
    done = subprocess.run(
        [sys.executable, "docker/triton_launcher.py", folder / "launchers"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    builder().make_driver(Path(done.stdout.strip()), folder / "libcuda.so.1")
    return folder


def load(
    image: Path, cache: Path, launchers: Path, *before: str, **environ: str
) -> tuple[str | None, list[int], list[str]]:
    """Load the launcher in a process. Returns the reason of a failure, a description of arguments, and kept files.

    `before`: words of a command that runs the process.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_") and name != "CC"}
    done = subprocess.run(
        [*before, sys.executable, "-c", LOAD, image / "libcuda.so.1", cache, launchers],
        cwd=ROOT, env=ours | environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    reason, made, files = json.loads(done.stdout.splitlines()[-1])
    return reason, made, files


def test_launcher_is_compiled_once_and_kept(image: Path, tmp_path: Path) -> None:
    none = tmp_path / "none"
    reason, made, (file,) = load(image, tmp_path / "code", none)
    assert (reason, file.partition(".")[0]) == (None, "cuda_utils")
    assert made
    assert load(image, tmp_path / "code", none, CC="/nonexistent")[0] is None


def test_missing_compiler_is_named_with_remedy(image: Path, tmp_path: Path) -> None:
    for environ in ({"PATH": "/nonexistent"}, {"CC": "/nonexistent"}):
        assert load(image, tmp_path / "code", tmp_path / "none", **environ) == (COMPILER_MISSING, [], [])


def test_missing_headers_are_named_with_remedy(image: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nexec gcc -nostdinc "$@"\n', encoding="ascii")
    compiler.chmod(0o755)
    assert load(image, tmp_path / "code", tmp_path / "none", CC=str(compiler))[0] == COMPILER_MISSING


def test_launcher_of_image_needs_no_compiler(image: Path, tmp_path: Path) -> None:
    reason, made, files = load(image, tmp_path / "code", image / "launchers", PATH="/nonexistent")
    assert reason is None
    assert made
    assert len(files) == 1


def test_launcher_of_other_triton_is_unused(image: Path, tmp_path: Path) -> None:
    (folder,) = (image / "launchers").iterdir()
    shutil.copytree(folder, tmp_path / "other" / ("0" * len(folder.name)))
    assert load(image, tmp_path / "code", tmp_path / "other", PATH="/nonexistent")[0] == COMPILER_MISSING


def test_damaged_launcher_is_named_without_paths(image: Path, tmp_path: Path) -> None:
    shutil.copytree(image / "launchers", tmp_path / "launchers")
    (file,) = (tmp_path / "launchers").rglob("*.so")
    file.write_bytes(b"\x7fELF")
    reason, _, _ = load(image, tmp_path / "code", tmp_path / "launchers")
    assert reason is not None
    assert reason.startswith("Triton's launcher cannot be loaded: cuda_utils.")
    assert "/" not in reason


def test_folder_without_programs_is_named(image: Path, tmp_path: Path) -> None:
    """Such as the /tmp of a container, where models.cache_dir cannot be written."""
    mount = f'mount -t tmpfs -o noexec,mode=700 tmpfs {tmp_path} && exec "$@"'
    before = ("unshare", "--mount", "sh", "-c", mount, "sh")
    if shutil.which("unshare") is None or subprocess.run([*before, "true"], check=False).returncode:
        pytest.skip("needs root, to mount a folder")
    reason, _, _ = load(image, tmp_path / "code", image / "launchers", *before)
    assert reason is not None
    assert reason.endswith("; make models.cache_dir writable, and do not mount it noexec")
