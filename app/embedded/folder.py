"""Folders that are either whole or absent: made aside, listed in a manifest, then renamed into place."""

import contextlib
import errno
import json
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

MANIFEST = "prepared.json"
ABANDONED_AFTER_S = 3600.0


class PreparationError(Exception):
    """An embedded model cannot be prepared; the message names the file and says what would be right."""


def is_prepared(folder: Path, recipe: Mapping[str, str]) -> bool:
    """Whether ``folder`` was made by this ``recipe`` and each of its files still has the size it was made with.

    Reads the manifest and the sizes only, no contents: an answer costs well under a millisecond.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if manifest["recipe"] != dict(recipe):
            return False
        return all((folder / name).stat().st_size == size for name, size in manifest["bytes"].items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def prepare_folder(folder: Path, recipe: Mapping[str, str], make: Callable[[Path], None]) -> bool:
    """Sees to it that ``folder`` is there as ``recipe`` says, calling ``make`` with an empty folder if it is not.

    Safe against crashes and against a second process doing the same: the folder appears by one rename, when it is
    whole. A folder of that name without our manifest is somebody's own: it is kept under another name.

    Returns: True if it was made, False if it was there.
    Raises: whatever ``make`` raises; nothing of the new folder is left then.
    """
    if is_prepared(folder, recipe):
        return False
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    making = _beside(folder, "making")
    making.mkdir()
    try:
        make(making)
        _write_manifest(making, recipe)
        _put_in_place(making, folder, recipe)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return True


def _put_in_place(making: Path, folder: Path, recipe: Mapping[str, str]) -> None:
    while True:
        try:
            making.rename(folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        if is_prepared(folder, recipe):  # another process was faster
            return
        _clear_the_place(folder)


def _clear_the_place(folder: Path) -> None:
    is_ours = (folder / MANIFEST).is_file()
    aside = _beside(folder, "old" if is_ours else "kept")
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        folder.rename(aside)
        if is_ours:
            shutil.rmtree(aside, ignore_errors=True)


def _write_manifest(folder: Path, recipe: Mapping[str, str]) -> None:
    sizes = {
        path.relative_to(folder).as_posix(): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()
    }
    manifest = {"recipe": dict(recipe), "bytes": sizes}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _beside(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.{kind}")


def _remove_abandoned(folder: Path) -> None:
    """Removes what a killed process left; anything younger may belong to one that is still at work."""
    for kind in ("making", "old"):
        for path in folder.parent.glob(f".{folder.name}.*.{kind}"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > ABANDONED_AFTER_S:
                    shutil.rmtree(path, ignore_errors=True)
