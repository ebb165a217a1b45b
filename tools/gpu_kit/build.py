"""Build a folder that checks Roundhouse on a machine with a GPU and without a network.

`python -m tools.gpu_kit.build FOLDER [--python 3.12]` packs the files of this checkout, the wheels that such a machine
lacks, MiniLM's files without its weights, and `gpu-check.sh`. The machine is Linux on x86-64 with a Python that has
torch, transformers, tokenizers, safetensors, numpy and onnxruntime: those and their CUDA libraries are gigabytes.
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from app.embedded.copy_minilm import TEXT_FILES
from memory.sizes import format_size

ROOT = Path(__file__).resolve().parents[2]
MAX_KIT_BYTES = 72 * 1024 * 1024
GIVEN = frozenset({"torch", "transformers", "tokenizers", "safetensors", "numpy", "onnxruntime"})
"""Packages that the machine has; what only they need is left out too."""
FOR_TESTS = ("httpx", "hypothesis", "pip", "pytest", "pytest-timeout", "pytest-xdist")
# pip compares platform names exactly: a wheel may be built for any of these versions of glibc.
_PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(5, 40)),
    *("manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64"),
)


class KitError(Exception):
    """The kit cannot be built; the message says why."""


def main() -> int:
    """Build the folder and print its size. Return 1, with a message, if it cannot be built."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_kit.build", description="Build a GPU kit.")
    parser.add_argument("folder", type=Path, help="it is made, or replaced if it is an older kit")
    parser.add_argument("--python", default="3.12", help="version of the machine's Python; default 3.12")
    arguments = parser.parse_args()
    try:
        size_bytes = build(arguments.folder, arguments.python)
    except KitError as error:
        print(f"gpu-kit: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.folder}: {format_size(size_bytes)}; on the machine with the GPU run ./gpu-check.sh in it")
    return 0


def build(folder: Path, python: str, minilm: Path = ROOT / "models" / "minilm") -> int:
    """Write the kit and return its bytes. `python`: a version such as 3.12. `minilm`: the prepared model's folder.

    Raises KitError if a wheel or a model file is missing, or the kit is larger than MAX_KIT_BYTES.
    """
    if folder.exists():
        if not (folder / "gpu-check.sh").is_file():
            raise KitError(f"{folder} is no kit; choose another folder or remove it")
        shutil.rmtree(folder)
    (folder / "wheels").mkdir(parents=True)
    _pack_project(folder / "roundhouse.tar.gz")
    _copy_minilm(minilm, folder / "minilm")
    for name in ("gpu-check.sh", "README.md"):
        shutil.copy(Path(__file__).parent / name, folder / name)
    _download(requirements(python), python, folder / "wheels")
    return _checked_size(folder)


def requirements(python: str) -> list[str]:
    """Return `name==version` of each package that the machine lacks, as installed here from the pinned versions."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    versions: dict[str, str] = {}
    visited: set[tuple[str, frozenset[str]]] = set()
    pending = [Requirement(each) for each in (*settings["project"]["dependencies"], *FOR_TESTS)]
    while pending:
        requirement = pending.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if name in GIVEN or (name, extras) in visited or not _applies(requirement, python, frozenset()):
            continue
        visited.add((name, extras))
        found = distribution(name)
        versions[name] = found.version.partition("+")[0]
        pending += [
            Requirement(text.partition(";")[0])
            for text in found.requires or ()
            if _applies(Requirement(text), python, extras)
        ]
    return [f"{name}=={version}" for name, version in sorted(versions.items())]


def _applies(requirement: Requirement, python: str, extras: frozenset[str]) -> bool:
    """Return whether the machine needs it: Linux on x86-64 with CPython of this version."""
    marker = requirement.marker
    if marker is None:
        return True
    machine = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
    }
    return any(marker.evaluate({**machine, "extra": extra}) for extra in ("", *extras))


def _pack_project(archive: Path) -> None:
    """Write the checkout's files, with changes that are not committed and without ignored files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        raise KitError(f"{ROOT}: expected a git checkout; {listed.stderr.decode().strip()}")
    with tarfile.open(archive, "w:gz") as packed:
        for name in sorted(set(listed.stdout.decode().split("\0")) - {""}):
            # A file may be deleted and not committed. The manual of the page is a link to a folder.
            if (ROOT / name).is_file() or (ROOT / name).is_symlink():
                packed.add(ROOT / name, name)


def _copy_minilm(source: Path, folder: Path) -> None:
    """Copy all but the weights: they are larger than the kit, and random ones take the same time."""
    for name in TEXT_FILES:
        if not (source / name).is_file():
            raise KitError(f"{source / name}: no such file; run `make models` first")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, folder / name)


def _download(packages: list[str], python: str, into: Path) -> None:
    platforms = [option for name in _PLATFORMS for option in ("--platform", name)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--implementation", "cp", "--python-version", python, *platforms, "--dest", str(into), *packages]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise KitError(f"pip download failed: {' '.join(errors) or done.stderr[-500:]}")


def _checked_size(folder: Path) -> int:
    sizes = {file: file.stat().st_size for file in _files(folder)}
    total = sum(sizes.values())
    if total > MAX_KIT_BYTES:
        largest = sorted(sizes, key=lambda file: -sizes[file])[:5]
        listed = ", ".join(f"{file.name} {format_size(sizes[file])}" for file in largest)
        raise KitError(f"expected at most {format_size(MAX_KIT_BYTES)}, got {format_size(total)}; largest: {listed}")
    return total


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(main())
