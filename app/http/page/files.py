"""Hold the files of the web page in memory, compressed once, below a path that contains a hash of all of them."""

import gzip
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

WEB_FOLDER = Path(__file__).parents[2] / "web"
"""The files of the page in this installation."""

_INDEX = "index.html"
_BASE = b"{{base}}"
_LARGE_BYTES = 1024**2
"""A larger file is read from the disk for each request, and is not compressed: the optional runtime has some."""
_HASH_CHARACTERS = 16
_READ_BYTES = 1024**2
_MEDIA_TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".ico": b"image/x-icon",
    ".js": b"text/javascript; charset=utf-8",
    ".json": b"application/json",
    ".map": b"application/json",
    ".md": b"text/plain; charset=utf-8",
    ".mjs": b"text/javascript; charset=utf-8",
    ".onnx": b"application/octet-stream",
    ".png": b"image/png",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
    ".wasm": b"application/wasm",
    ".webp": b"image/webp",
    ".woff2": b"font/woff2",
}
_COMPRESSED = (b"text/", b"application/json", b"application/wasm", b"image/svg+xml")


class WebFile(NamedTuple):
    """One file. `content`: None for a large one, which is at `path`. `compressed`: with gzip; None: not worth it."""

    path: Path
    media_type: bytes
    etag: bytes
    size: int
    content: bytes | None
    compressed: bytes | None


@dataclass(frozen=True, slots=True)
class WebSite:
    """The page and its files. Immutable.

    `base`: path of the files, `/web/<hash>`. `index`: the page, which names them. `files`: by path below `base`.
    """

    base: str
    index: WebFile
    files: Mapping[str, WebFile] = field(repr=False)

    @staticmethod
    def is_in(folder: Path = WEB_FOLDER) -> bool:
        """Whether `read` finds a page in the folder."""
        return (folder / _INDEX).is_file()

    @classmethod
    def read(cls, folder: Path = WEB_FOLDER) -> Self | None:
        """Read a folder with `index.html`; None without one. Names that begin with a dot are left out.

        Of a linked folder only its files are read, not its folders: in a checkout `manual` is a link to the manual.
        `{{base}}` in `index.html` becomes the path of the files, relative to `/`. Raises OSError.
        """
        if not cls.is_in(folder):
            return None
        paths = dict(sorted(_paths(folder)))
        tree = hashlib.sha256()
        files = {}
        for name, path in paths.items():
            digest = _digest(path)
            tree.update(f"{name}\0{digest}\0".encode())
            files[name] = _file(path, digest, path.read_bytes() if path.stat().st_size <= _LARGE_BYTES else None)
        base = f"/web/{tree.hexdigest()[:_HASH_CHARACTERS]}"
        page = (folder / _INDEX).read_bytes().replace(_BASE, base[1:].encode())
        del files[_INDEX]
        return cls(base, _file(folder / _INDEX, hashlib.sha256(page).hexdigest(), page), files)

    def index_below(self, prefix: str) -> WebFile:
        """Return the page for clients that see it at this prefix, with or without a slash at its end."""
        assert self.index.content is not None
        base = f'<head>\n  <base href="{prefix}/">'.encode()
        page = self.index.content.replace(b"<head>", base, 1)
        return _file(self.index.path, hashlib.sha256(page).hexdigest(), page)

    def find(self, path: str) -> WebFile | None:
        """Return the file with this path, as `/web/<hash>/main.js`; None for any other path."""
        # Names of a dictionary: no path of a request reaches the file system.
        prefix = f"{self.base}/"
        return self.files.get(path[len(prefix) :]) if path.startswith(prefix) else None


def _paths(folder: Path) -> Iterator[tuple[str, Path]]:
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [] if Path(parent).is_symlink() else [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield path.relative_to(folder).as_posix(), path


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_READ_BYTES):
            digest.update(part)
    return digest.hexdigest()


def _file(path: Path, digest: str, content: bytes | None) -> WebFile:
    media_type = _MEDIA_TYPES.get(path.suffix.lower(), b"application/octet-stream")
    compressed = None
    if content is not None and media_type.startswith(_COMPRESSED):
        compressed = gzip.compress(content, mtime=0)
        if len(compressed) >= len(content):
            compressed = None
    size = path.stat().st_size if content is None else len(content)
    return WebFile(path, media_type, f'"{digest[:_HASH_CHARACTERS]}"'.encode(), size, content, compressed)
