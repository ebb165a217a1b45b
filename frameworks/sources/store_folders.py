"""Keep the fetched versions of one address: complete versions, parts of downloads, and the names of revisions.

`versions/<id>/`: a complete model and its manifest. `partial/<id>/`: a download. `refs/<revision>-<framework>`: an id.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import msgspec

from frameworks.core.addresses import SourceAddress
from frameworks.sources.contract import Framework
from frameworks.sources.served_files import Selection, ServedFile

_MANIFEST = ".roundhouse.json"
_MAX_MANIFEST_BYTES = 4 << 20
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A complete version. `folder`: absolute. `revision`: the commit of a hub that has these files, else None.

    `downloaded_bytes`: 0 if all files were in the cache.
    """

    folder: Path
    framework: Framework
    revision: str | None
    downloaded_bytes: int = 0

    @property
    def is_cached(self) -> bool:
        return self.downloaded_bytes == 0


class AddressFolder:
    """The versions of one address, whatever the revision. Only the holder of `lock_file` writes, except for refs."""

    def __init__(self, root: Path, address: SourceAddress) -> None:
        """`root`: absolute, of all sources. Touches no file."""
        location = f"{address.repository}/{address.path}".strip("/")
        slug = re.sub(r"[^A-Za-z0-9]+", "-", location, flags=re.ASCII).strip("-")[:64]
        digest = hashlib.sha256(f"{address.scheme}://{location}".encode()).hexdigest()[:16]
        self.path = root / address.scheme / f"{slug}-{digest}"
        self.lock_file = self.path / "lock"
        # A branch cannot have this name.
        self._revision = address.revision or "@default"

    def named(self, framework: Framework | None) -> Fetched | None:
        """Return the version that the revision of the address named last; None where it is absent or damaged.

        `framework`: None for any of them.
        """
        if framework is not None:
            return self._named(framework)
        return self._named(None) or self._named("pytorch") or self._named("onnx")

    def version(self, name: str) -> Fetched | None:
        """Return a version whose files all have their sizes; None where it is absent or damaged."""
        folder = self.path / "versions" / name
        content = _manifest(folder)
        if content is None or not all(_size(folder / each.name) == each.size for each in content.files):
            return None
        return Fetched(folder, content.framework, content.revision)

    def partial(self, name: str) -> Path:
        """Return the folder of a download, which may not exist."""
        return self.path / "partial" / name

    def reuse(self, name: str, selection: Selection) -> None:
        """Link the files of other versions, which have the same etags, into a download."""
        partial = self.partial(name)
        stored: dict[tuple[str, int, str], Path] = {}
        for folder in _folders(self.path / "versions"):
            content = _manifest(folder)
            stored |= (
                {(each.source, each.size, each.etag): folder / each.name for each in content.files} if content else {}
            )
        for each in selection.files:
            file, target = stored.get(_identity(each)), partial / each.name
            if file is not None and each.remote.etag and _size(file) == each.remote.size and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                with suppress(OSError):  # a file system without links: it is downloaded
                    os.link(file, target)

    def publish(self, name: str, address: SourceAddress, selection: Selection, revision: str | None) -> Fetched:
        """Turn a complete download into a version, in one step that a crash cannot divide."""
        partial, folder = self.partial(name), self.path / "versions" / name
        expected = {each.name for each in selection.files}
        for file in [each for each in partial.rglob("*") if not each.is_dir()]:
            if file.relative_to(partial).as_posix() not in expected:
                file.unlink()
        files = tuple(_StoredFile(each.name, *_identity(each)) for each in selection.files)
        content = msgspec.json.encode(_Manifest(str(address), selection.framework, revision, files))
        _write_durably(partial / _MANIFEST, msgspec.json.format(content, indent=1))
        for each in {partial, *(file.parent for file in partial.rglob("*"))}:
            _sync_folder(each)
        if folder.exists():  # damaged
            shutil.rmtree(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(folder)
        _sync_folder(folder.parent)
        return Fetched(folder, selection.framework, revision)

    def name_version(self, name: str, revision: str | None, frameworks: Iterable[Framework | None]) -> None:
        """Let the revision of the address name a version. `revision`: the commit that has its files."""
        content = f"{name} {revision or ''}".strip()
        for framework in frameworks:
            ref = self._ref(framework)
            if not ref.is_file() or ref.read_text(encoding="ascii", errors="replace") != content:
                ref.parent.mkdir(parents=True, exist_ok=True)
                written = ref.with_name(f".{uuid4().hex}")
                _write_durably(written, content.encode())
                written.replace(ref)

    def prune(self, name: str) -> None:
        """Remove the other downloads, and the versions without a name except for the newest of them."""
        for partial in _folders(self.path / "partial"):
            if partial.name != name:
                shutil.rmtree(partial, ignore_errors=True)
        refs = [ref for ref in (self.path / "refs").iterdir() if not ref.name.startswith(".")]
        named = {name, *(ref.read_text(encoding="ascii", errors="replace").partition(" ")[0] for ref in refs)}
        unnamed = [folder for folder in _folders(self.path / "versions") if folder.name not in named]
        unnamed.sort(key=lambda folder: folder.stat().st_mtime_ns)
        for folder in unnamed[:-1]:
            shutil.rmtree(folder, ignore_errors=True)

    def _named(self, framework: Framework | None) -> Fetched | None:
        try:
            name, _, revision = self._ref(framework).read_text(encoding="ascii").partition(" ")
        except (OSError, ValueError):
            return None
        version = self.version(name) if _ID.fullmatch(name) else None
        return replace(version, revision=revision or None) if version else None

    def _ref(self, framework: Framework | None) -> Path:
        return self.path / "refs" / f"{self._revision}-{framework or 'any'}"


def version_name(selection: Selection) -> str:
    """Return the id of a content. It changes with each file, and not with a commit that changes other files."""
    parts = [[each.name, each.remote.etag, each.remote.size, each.remote.sha256] for each in selection.files]
    return hashlib.sha256(json.dumps([selection.framework, parts]).encode()).hexdigest()[:32]


class _StoredFile(msgspec.Struct, frozen=True):
    """A file of a manifest. `source`: its name at the source. `size`: in bytes."""

    name: str
    source: str
    size: int
    etag: str


class _Manifest(msgspec.Struct, frozen=True):
    address: str
    framework: Framework
    revision: str | None
    files: tuple[_StoredFile, ...]


def _manifest(folder: Path) -> _Manifest | None:
    """Return the manifest of a version; None where it is absent or damaged."""
    try:
        with (folder / _MANIFEST).open("rb") as opened:
            return msgspec.json.decode(opened.read(_MAX_MANIFEST_BYTES), type=_Manifest)
    except (OSError, ValueError, RecursionError):  # ValueError: also of msgspec
        return None


def _identity(file: ServedFile) -> tuple[str, int, str]:
    return file.remote.name, file.remote.size, file.remote.etag


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except (OSError, TypeError, ValueError):
        return None


def _folders(parent: Path) -> list[Path]:
    return [each for each in parent.iterdir() if each.is_dir()] if parent.is_dir() else []


def _write_durably(file: Path, content: bytes) -> None:
    with file.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
