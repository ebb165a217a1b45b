"""Compile the C module with which Triton launches kernels: `python triton_launcher.py FOLDER`.

Triton compiles it at its first kernel, and the image has no compiler. frameworks/pytorch/device_kernels/launcher.py
takes it from FOLDER, by the digest of its source. Needs gcc, nm(1) and the headers of Python, and no GPU: it is linked
with a library that has the names of CUDA's driver and no code.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NAME = "cuda_utils"
DRIVER = "libcuda.so.1"
_DIGEST_CHARACTERS = 16


def compile_launcher(folder: Path) -> Path:
    """Compile the module of the installed Triton, and return its path."""
    from triton.backends.nvidia import driver
    from triton.runtime.build import _build

    source = Path(driver.__file__).with_name("driver.c")
    with tempfile.TemporaryDirectory() as name:
        own = Path(name)
        copy = shutil.copy(source, own / f"{NAME}.c")
        unlinked = _build(NAME, str(copy), name, [], driver.include_dirs, [], [])
        make_driver(Path(unlinked), own / DRIVER)
        built = Path(_build(NAME, str(copy), name, [name], driver.include_dirs, driver.libraries, []))
        target = folder / hashlib.sha256(source.read_bytes()).hexdigest()[:_DIGEST_CHARACTERS]
        target.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(built, target))


def make_driver(module: Path, library: Path) -> None:
    """Make a library without code that has the names of CUDA's driver that a compiled module needs."""
    listed = subprocess.check_output(["nm", "-D", "--undefined-only", module], text=True)  # noqa: S603, S607
    names = [line.split()[-1] for line in listed.splitlines()]
    code = "".join(f"void {name}(void) {{}}\n" for name in names if name.startswith("cu"))
    options = ["-shared", "-fPIC", f"-Wl,-soname,{DRIVER}", "-o", str(library), "-x", "c", "-"]
    subprocess.run(["gcc", *options], input=code, text=True, check=True)  # noqa: S603, S607


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python triton_launcher.py FOLDER")
    if importlib.util.find_spec("triton") is not None:  # an image without PyTorch has none
        print(compile_launcher(Path(sys.argv[1])))
