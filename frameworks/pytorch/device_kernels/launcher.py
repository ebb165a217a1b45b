"""The C module with which Triton launches every kernel: compiled once, or taken from an image that has no compiler."""

import hashlib
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path

from frameworks.core.errors import without_paths

PREBUILT = Path(sys.prefix) / "lib" / "triton-launcher"
"""Where docker/triton_launcher.py puts the module of an image, in a folder named by the digest of its source."""

_DIGEST_CHARACTERS = 16
_REMEDY = "Triton needs a C compiler and the headers of Python; install gcc and python3-dev, or use the server's image"
# The dynamic linker's words, for the /tmp of a container above all.
_NOEXEC = "failed to map segment"
_NOEXEC_REMEDY = "; make models.cache_dir writable, and do not mount it noexec"


class _NotCompiled(Exception):
    """There is no C compiler, or it fails. It has printed its reason."""


@cache
def failure() -> str | None:
    """Load the module, and return why that is impossible; None: it is loaded, and in Triton's cache.

    The reason names a remedy and no paths. Later calls return the result of the first.
    """
    try:
        _load()
    except _NotCompiled:
        return _REMEDY
    except Exception as error:  # noqa: BLE001 - whatever the reason, the model runs without kernels
        first_line, _, _ = str(error).partition("\n")
        remedy = _NOEXEC_REMEDY if _NOEXEC in first_line else ""
        return f"Triton's launcher cannot be loaded: {without_paths(first_line) or type(error).__name__}{remedy}"
    return None


def _load() -> None:
    from triton import knobs
    from triton.backends.nvidia.driver import CudaUtils
    from triton.runtime.build import _build

    def build(
        name: str, source: str, folder: str, library_dirs: list[str], include_dirs: list[str], libraries: list[str]
    ) -> str:
        """Return the path of the module, as Triton's own function."""
        file = _prebuilt(Path(source), name)
        if file is not None:
            return str(file)
        with knobs.build.scope():
            knobs.build.impl = None
            try:
                built: str = _build(name, source, folder, library_dirs, include_dirs, libraries, [])
            except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                raise _NotCompiled from error
        return built

    with knobs.build.scope(), knobs.nvidia.scope():
        knobs.build.impl = build
        # Triton asks ldconfig, whose list lacks it on some read-only containers. It keeps what it finds.
        if not knobs.nvidia.libcuda_path and (folder := _driver_folder()) is not None:
            knobs.nvidia.libcuda_path = str(folder)
        CudaUtils()


def _prebuilt(source: Path, name: str) -> Path | None:
    """Return the module of this source for this Python in an image; None: it has to be compiled."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:_DIGEST_CHARACTERS]
    file = PREBUILT / digest / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    return file if file.is_file() else None


def _driver_folder() -> Path | None:
    """Return the folder of the library of CUDA's driver that this process has loaded."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        _, _, path = line.partition("/")
        file = Path("/" + path)
        if file.name.startswith("libcuda.so") and file.with_name("libcuda.so.1").exists():
            return file.parent
    return None
