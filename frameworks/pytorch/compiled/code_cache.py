"""The folder that compiled code is kept in between processes."""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import structlog

from frameworks.pytorch.compiled.vectors import lanes

log = structlog.get_logger(__name__)

_DIGEST_CHARACTERS = 16
_folder: Path | None = None


def set_cache_folder(folder: Path) -> None:
    """Keep compiled code below this folder, unless the variable NUMBA_CACHE_DIR names another."""
    global _folder  # noqa: PLW0603 - numba's own setting is global too
    _folder = folder


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
    """Return a name for all that the code is made of. numba looks at the file of one function alone."""
    import llvmlite
    import numba

    found = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {lanes()}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:_DIGEST_CHARACTERS]
