"""Remove from the packages of an image what no code there uses: `python slim.py SITE_PACKAGES`.

Runs after pip, before the modules are compiled. Extension modules lose their symbols for debuggers, by strip(1).
"""

import shutil
import struct
import subprocess
import sys
from pathlib import Path

EVERYWHERE = ("**/tests", "torch/test", "**/*.pyi")
"""Tests of packages, of torch only in its CPU build, and stubs of types."""
UNUSED = {
    # Images are decoded, resized and converted: no AVIF, no fonts, no colour profiles, no windows.
    "PIL": (
        *("PIL/_avif.*.so", "PIL/_imagingft.*.so", "PIL/_imagingcms.*.so", "PIL/_imagingtk.*.so"),
        *("pillow.libs/libavif-*", "pillow.libs/libfreetype-*", "pillow.libs/libharfbuzz-*", "pillow.libs/liblcms2-*"),
        *("pillow.libs/libbrotli*", "pillow.libs/libpng16-*"),  # those of libfreetype
    ),
    "botocore": ("botocore/data/*/",),
    "numba": ("numba/cuda",),
    "onnx": ("onnx/backend/test",),
    "onnxruntime": ("onnxruntime/transformers/models",),
    "simdjson": ("simdjson/simdjson.h", "simdjson/simdjson.cpp"),
    # Programs of tests, and headers for compilers, which no image has.
    "torch": ("torch/bin/*", "torch/include", "torch/share"),
}
"""Patterns by installed package, relative to site-packages."""
KEPT = {
    "torch/bin/torch_shm_manager",
    # Services that s3fs calls, or that give it credentials.
    *(f"botocore/data/{service}" for service in ("s3", "signin", "sso", "sso-oidc", "sts")),
}
STRIPPED = (
    *("**/*.cpython-*.so", "**/*.abi3.so"),
    *("llvmlite/binding/*.so", "torch/lib/libtorch_cpu.so", "torch/lib/libtorch_python.so"),
)
"""Extension modules, and large libraries that have symbols for debuggers."""
PT_LOAD = 1


def unused(packages: Path) -> list[Path]:
    """Return what to remove. Raises ValueError for a pattern without a match in an installed package."""
    found = [path for pattern in EVERYWHERE for path in packages.glob(pattern)]
    for package, patterns in UNUSED.items():
        for pattern in patterns if (packages / package).exists() else ():
            matches = list(packages.glob(pattern))
            if not matches:
                raise ValueError(f"{pattern}: expected a match in installed {package}, got none; mend slim.py")
            found += matches
    return [path for path in found if path.relative_to(packages).as_posix() not in KEPT]


def slim(packages: Path) -> None:
    """Remove and strip in `packages`, a folder of installed packages."""
    for path in unused(packages):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # in a removed folder
    for library in sorted({path for pattern in STRIPPED for path in packages.glob(pattern)}):
        strip(library)


def strip(library: Path) -> None:
    """Remove symbols and debug sections from a library, unless it could then not be loaded.

    strip moves the segments of some libraries whose headers patchelf has changed.
    """
    stripped = library.with_name(f"{library.name}.stripped")
    subprocess.run(["strip", "--strip-unneeded", "-o", stripped, library], check=True)  # noqa: S603, S607
    if loads(stripped.read_bytes()):
        stripped.replace(library)
    else:
        stripped.unlink()


def loads(elf: bytes) -> bool:
    """Return whether all segments of a 64-bit little-endian ELF file are aligned as the dynamic linker expects."""
    (table,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    for start in range(table, table + size * count, size):
        kind, _, offset, address, _, _, _, alignment = struct.unpack_from("<IIQQQQQQ", elf, start)
        if kind == PT_LOAD and (offset - address) % alignment:
            return False
    return True


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python slim.py SITE_PACKAGES")
    try:
        slim(Path(sys.argv[1]))
    except ValueError as error:
        sys.exit(str(error))
