"""Decide which paths and addresses `POST /models` may register."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.auth.errors import Forbidden
from frameworks.core.addresses import Scheme, SourceAddress
from frameworks.core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class AllowedPaths:
    """Bounds of registrations at run time.

    `base_dir`: base of relative paths. `roots`: absolute folders with models. `sources`: prefixes of addresses.
    `folder_of`: returns the folder of an address in the cache.
    """

    base_dir: Path
    roots: tuple[Path, ...]
    sources: tuple[SourceAddress | Scheme, ...]
    folder_of: Callable[[SourceAddress], Path]

    def check(self, path: Path | SourceAddress) -> Path:
        """Return the absolute path with symbolic links resolved, or the folder of an address in the cache.

        Raises Forbidden where it is neither below a root nor within the sources, InvalidInput where it is not readable.
        """
        if isinstance(path, SourceAddress):
            return self._check_address(path)
        shown = f'"{str(path)[:200]}"'
        try:
            resolved = (self.base_dir / path).resolve()
        except (OSError, RuntimeError):  # links in a circle are a RuntimeError before Python 3.13
            raise InvalidInput("path", f"expected a file or folder, got a loop of symbolic links: {shown}") from None
        if not any(resolved.is_relative_to(root.resolve()) for root in self.roots):
            raise Forbidden(f"path: expected a path below models.roots, got {shown}; move the model there")
        try:
            resolved.stat()
        except (FileNotFoundError, NotADirectoryError):
            pass  # the loader reports which file is missing
        except OSError as error:
            raise InvalidInput("path", f"expected a readable path, got {shown} ({error.strerror})") from None
        return resolved

    def _check_address(self, address: SourceAddress) -> Path:
        if not any(address.is_within(prefix) for prefix in self.sources):
            raise Forbidden(
                f'path: expected an address within models.sources, got "{str(address)[:200]}"; add it there, or name '
                "the model in the config file"
            )
        return self.folder_of(address)
