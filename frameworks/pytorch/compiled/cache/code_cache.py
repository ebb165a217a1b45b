"""The folder in which processes cache compiled code."""

import atexit
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import structlog

from frameworks.core.machine_code.code_files import SUFFIX, DamagedCode, read_code
from frameworks.pytorch.compiled.cpu_features import has_amx, lanes

log = structlog.get_logger(__name__)

_DIGEST_CHARACTERS = 16
_WHOLE_PART = "._region"
_folder: Path | None = None
# The folder of this code, of this process alone or of the one that compiles for it; None: below `_folder`.
_own: Path | None = None
_only_fills_cache = False


def set_cache_folder(folder: Path) -> None:
    """Cache compiled code below this folder, unless the variable NUMBA_CACHE_DIR names another."""
    global _folder  # noqa: PLW0603 - numba's own setting is global too
    _folder = folder


def code_folder() -> Path:
    """Return the folder of this code on this CPU; where none can be written, one of this process, removed at its exit.

    Raises OSError where that one cannot be made either.
    """
    return current_folder() or use_temporary_folder()


def use_temporary_folder() -> Path:
    """Cache compiled code in a folder of this process from now on, and return it. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix="roundhouse-compiled-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    use_folder(folder)
    return folder


def use_folder(folder: Path, *, only_to_fill: bool = False) -> None:
    """Cache compiled code in this folder, which exists, and nowhere else.

    `only_to_fill`: this process has no other use for the code, so it fails where the folder does not take it.
    """
    global _own, _only_fills_cache
    _own, _only_fills_cache = folder, only_to_fill


def is_temporary() -> bool:
    """Whether the cache is of this process alone."""
    return _own is not None


def only_fills_cache() -> bool:
    """Whether this process compiles only to fill the cache."""
    return _only_fills_cache


def missing(functions: Iterable[str]) -> list[str]:
    """Return those functions whose code is not in the cache, or is damaged."""
    folder = current_folder()
    return [each for each in functions if folder is None or not _is_cached(folder, each)]


def _is_cached(folder: Path, function: str) -> bool:
    """Whether the code is whole. With that of a part, the code of all functions of its module."""
    files = [code_file(folder, function)]
    if function.endswith(_WHOLE_PART):
        # The last function of its module that is compiled.
        files += sorted(set(folder.glob(f"{function.removesuffix(_WHOLE_PART)}.*{SUFFIX}")) - set(files))
    whole = [_is_whole(each) for each in files]  # of all, so that the log names each damaged file
    return all(whole)


def _is_whole(file: Path) -> bool:
    try:
        return read_code(file, code_key(file.name.removesuffix(SUFFIX))) is not None
    except DamagedCode as error:
        warn_of_damage(file, str(error))
        return False


@cache
def warn_of_damage(file: Path, reason: str) -> None:
    """Log once that a file is not used."""
    log.warning("damaged compiled code is compiled again", file=str(file), reason=reason)


def code_file(folder: Path, function: str) -> Path:
    """Return the file of a function's code."""
    return folder / f"{function}{SUFFIX}"


def code_key(function: str) -> str:
    """Return what a file must have been written for: the function, all code and the CPU."""
    return f"{function} {_digest()}"


def current_folder() -> Path | None:
    """Return the folder of the cache, None where none can be written."""
    if _own is not None:
        return _own
    own = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(own) if own else _folder
    if base is None:
        return None
    return _made(base / _digest()[:_DIGEST_CHARACTERS])


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
    """Return a name for all that the code is made of, and for the CPU."""
    import llvmlite
    import numba
    from numba.core.registry import cpu_target

    cpu = cpu_target.target_context.codegen().magic_tuple()
    vectors = f"{lanes()} {has_amx()}"
    found = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {vectors} {cpu}".encode())
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()
