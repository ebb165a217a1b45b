"""The folder in which Triton keeps compiled kernels. It loads what it finds there, so no other user may write to it."""

import atexit
import os
import shutil
import stat
import tempfile
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_VARIABLE = "TRITON_CACHE_DIR"


def keep_code_in(folder: Path) -> None:
    """Let Triton keep compiled kernels in a folder, unless the environment names another.

    Its own is in the home folder, which a container may not have. Where the folder cannot be written, or another user
    can write to it, each start compiles into a temporary folder. Call it before Triton compiles.
    """
    if _VARIABLE in os.environ:
        return
    folder = folder.absolute()
    try:
        _make_private(folder)
    except OSError as error:
        log.warning(
            "kernels of CUDA devices are not kept: each start compiles them again",
            folder=str(folder),
            error=str(error),
            remedy="make models.cache_dir writable for this user alone, and remove that folder",
        )
        folder = Path(tempfile.mkdtemp(prefix="roundhouse-triton-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[_VARIABLE] = str(folder)


def _make_private(folder: Path) -> None:
    """Make a folder that only this user can read and write. Raises OSError where that is impossible."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if {found.st_uid, folder.lstat().st_uid} != {os.geteuid()}:
        raise PermissionError(f"{folder}: expected a folder of this user, got one of user {found.st_uid}")
    if found.st_mode & stat.S_IWOTH:
        raise PermissionError(f"{folder}: expected a folder that this user alone can write, got one for all users")
    # Kubernetes lets the group of a volume write to all of it.
    folder.chmod(0o700)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(1))
