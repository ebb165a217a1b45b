"""Prepare folders that are complete or absent: made in a temporary folder, listed in a manifest, then renamed."""

import contextlib
import errno
import hashlib
import json
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MANIFEST = "prepared.json"
ABANDONED_AFTER_S = 3600.0


class PreparationError(Exception):
    """An embedded model cannot be prepared; the message names the file and the remedy."""


def is_prepared(folder: Path, recipe: Mapping[str, str]) -> bool:
    """Return whether this ``recipe`` made ``folder`` and the sizes of its files are unchanged.

    Only the manifest is read, not the files: less than a millisecond.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if manifest["recipe"] != dict(recipe):
            return False
        return all((folder / name).stat().st_size == size for name, size in manifest["bytes"].items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def prepare_folder(folder: Path, recipe: Mapping[str, str], make: Callable[[Path], None]) -> bool:
    """Make ``folder`` with ``make``, which fills an empty folder, unless ``recipe`` made it before.

    Safe against crashes and against a second process: the complete folder appears by one rename. A folder of the same
    name without a manifest belongs to the user: it is renamed and kept.

    Returns: True if the folder was made, False if it exists.
    Raises: the error of ``make``; the unfinished folder is removed.
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


def copy_committed(folder: Path, source: Path, files: Sequence[str], training: str) -> bool:
    """Copy ``files`` of ``source`` to ``folder``, unless the current ones were copied before.

    ``training``: the command that makes them again, for the message.

    Returns: True if they were copied, False if they exist.
    Raises: PreparationError if a file is missing.
    """
    missing = [name for name in files if not (source / name).is_file()]
    if missing:
        raise PreparationError(f"{source}: expected {', '.join(missing)}, got none; restore them, or run: {training}")
    recipe = {name: hashlib.sha256((source / name).read_bytes()).hexdigest() for name in files}

    def copy(into: Path) -> None:
        for name in files:
            shutil.copyfile(source / name, into / name)

    return prepare_folder(folder, recipe, copy)


def _put_in_place(making: Path, folder: Path, recipe: Mapping[str, str]) -> None:
    while True:
        try:
            making.rename(folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        if is_prepared(folder, recipe):  # another process made it
            return
        _move_aside(folder)


def _move_aside(folder: Path) -> None:
    has_manifest = (folder / MANIFEST).is_file()
    aside = _beside(folder, "old" if has_manifest else "kept")
    with contextlib.suppress(FileNotFoundError):  # another process moved it
        folder.rename(aside)
        if has_manifest:
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
    """Remove unfinished folders of killed processes. A recent one may belong to a running process."""
    for kind in ("making", "old"):
        for path in folder.parent.glob(f".{folder.name}.*.{kind}"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > ABANDONED_AFTER_S:
                    shutil.rmtree(path, ignore_errors=True)
