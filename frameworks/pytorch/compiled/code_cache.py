"""The folder that compiled code is kept in between processes."""

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import structlog

from frameworks.pytorch.compiled.vectors import has_matrix_tiles, lanes

log = structlog.get_logger(__name__)

_DIGEST_CHARACTERS = 16
_MARK = ".made"
_folder: Path | None = None
# The folder of this code, of this process alone or of the one that compiles for it; None: below `_folder`.
_own: Path | None = None


def set_cache_folder(folder: Path) -> None:
    """Keep compiled code below this folder, unless the variable NUMBA_CACHE_DIR names another."""
    global _folder  # noqa: PLW0603 - numba's own setting is global too
    _folder = folder


def code_folder() -> Path:
    """Return the folder of this code on this CPU; where none can be written, one of this process, removed at its exit.

    Raises OSError where that one cannot be made either.
    """
    return _usable() or use_temporary_folder()


def use_temporary_folder() -> Path:
    """Keep compiled code in a folder of this process from now on, and return it. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix="roundhouse-compiled-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    use_folder(folder)
    return folder


def use_folder(folder: Path) -> None:
    """Keep compiled code in this folder, which exists, and nowhere else."""
    global _own  # noqa: PLW0603 - as in set_cache_folder
    _own = folder


def is_temporary() -> bool:
    """Whether the code is kept for this process alone."""
    return _own is not None


def mark_made(function: str) -> None:
    """Note that the code of a function is kept: a process that needs it need not compile."""
    folder = _usable()
    if folder is not None:
        with suppress(OSError):
            (folder / f"{function}{_MARK}").touch()


def missing(functions: Iterable[str]) -> list[str]:
    """Return those functions whose code is not kept."""
    folder = _usable()
    return [each for each in functions if folder is None or not (folder / f"{each}{_MARK}").exists()]


@contextmanager
def cache_folder() -> Iterator[bool]:
    """Set numba's folder within the block; False if there is none that can be written."""
    import numba

    folder = _usable()
    before = numba.config.CACHE_DIR
    if folder is not None:
        numba.config.CACHE_DIR = str(folder)
    try:
        yield folder is not None
    finally:
        numba.config.CACHE_DIR = before


def _usable() -> Path | None:
    if _own is not None:
        return _own
    own = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(own) if own else _folder
    if base is None:
        return None
    return _made(base / _digest())


@cache
def _made(folder: Path) -> Path | None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(bytes(1))
            file.flush()
    except OSError as error:
        log.warning(
            "compiled code is not kept: each start compiles it again",
            folder=str(folder),
            error=str(error),
            remedy="make models.cache_dir writable",
        )
        return None
    return folder


@cache
def _digest() -> str:
    """Return a name for all that the code is made of, and for the CPU. numba looks at the file of one function alone;
    a file with another time is a new one to it.
    """
    import llvmlite
    import numba
    from numba.core.registry import cpu_target

    cpu = cpu_target.target_context.codegen().magic_tuple()
    vectors = f"{lanes()} {has_matrix_tiles()}"
    found = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {vectors} {cpu}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
        found.update(str(path.stat().st_mtime_ns).encode())
    return found.hexdigest()[:_DIGEST_CHARACTERS]
