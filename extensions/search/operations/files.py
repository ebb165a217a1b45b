"""Keep the settings of collections that were created at run time, each beside its files."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import structlog
from pydantic import ValidationError

from extensions.search.settings import CollectionEntry

log = structlog.get_logger(__name__)

_FILE = "collection.json"
_MAX_BYTES = 64 * 1024
MAX_CREATED = 256
"""Collections that are created at run time and exist at the same time."""


class CollectionFiles:
    """The collections below one folder. Thread-safe for different names. All methods but `folder` block."""

    def __init__(self, root: Path) -> None:
        """`root`: absolute; created with the first collection."""
        self._root = root

    def folder(self, name: str) -> Path:
        """Return the folder of a collection."""
        return self._root / name

    def read(self) -> list[CollectionEntry]:
        """Return the settings that are kept, by name. Damaged ones are logged and left out."""
        try:
            names = sorted(each.name for each in os.scandir(self._root) if each.is_dir())
        except OSError:  # there is none
            return []
        return [entry for name in names for entry in self._read(name)][:MAX_CREATED]

    def save(self, entry: CollectionEntry) -> None:
        """Keep the settings of a collection, whose folder exists. Raises OSError."""
        target = self.folder(entry.name) / _FILE
        draft = target.with_suffix(".draft")
        with draft.open("w", encoding="utf-8") as opened:
            opened.write(entry.model_dump_json(exclude={"path"}))
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(target)

    def delete(self, name: str) -> None:
        """Delete the settings of a closed collection, and then all of its files. Raises OSError."""
        (self.folder(name) / _FILE).unlink(missing_ok=True)
        shutil.rmtree(self.folder(name))

    def _read(self, name: str) -> Iterator[CollectionEntry]:
        file = self.folder(name) / _FILE
        try:
            if file.stat().st_size > _MAX_BYTES:
                raise ValueError(f"{_FILE}: expected at most {_MAX_BYTES} bytes")
            entry = CollectionEntry.model_validate_json(file.read_bytes())
            if entry.name != name:
                raise ValueError(f"{_FILE}: expected the name of its folder")
        except FileNotFoundError:
            return
        except (OSError, ValueError, ValidationError) as error:
            log.error("the settings of a collection cannot be read", collection=name, reason=str(error))
            return
        yield entry
