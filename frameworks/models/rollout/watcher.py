"""Watch the files of models with `watch = true`, and reload served versions whose files change."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from frameworks.core.errors import RoundhouseError
from frameworks.models.versions.slot import ModelSlot
from frameworks.models.versions.version_folders import ONLY_VERSION, version_of

log = structlog.get_logger(__name__)

# A folder is reloaded when its files have not changed for _QUIET_MS, or after _LONGEST_MS of changes.
_QUIET_MS = 500
_LONGEST_MS = 30_000
_ABSENT_POLL_S = 2.0

Refresh = Callable[[str, frozenset[str]], Awaitable[None]]


class FolderWatcher:
    """Run one task for each watched model. Owned by the event loop."""

    def __init__(self, refresh: Refresh) -> None:
        """`refresh(model, versions)` is called with the versions whose files changed; its errors are logged."""
        self._refresh = refresh
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow(self, slot: ModelSlot) -> None:
        """Watch the model's path, if its entry has `watch`. May be called again."""
        if slot.entry.watch and slot.name not in self._tasks:
            self._tasks[slot.name] = asyncio.get_running_loop().create_task(self._watch(slot.name, slot.path))

    async def unfollow(self, name: str) -> None:
        """Stop watching a model."""
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        """Stop watching all models."""
        for name in list(self._tasks):
            await self.unfollow(name)

    async def _watch(self, name: str, path: Path) -> None:
        # Imported here: it takes 20 ms, which only servers with a watched model need.
        from watchfiles import awatch

        while True:
            folder = await asyncio.to_thread(_folder_of, path)
            if folder is None:
                await asyncio.sleep(_ABSENT_POLL_S)
                continue
            try:
                changes = awatch(folder, watch_filter=None, step=_QUIET_MS, debounce=_LONGEST_MS)
                async for changed in changes:
                    files = [Path(file) for _, file in changed]
                    if path != folder:
                        files = [file for file in files if file.name == path.name]
                    if files:
                        await self._refresh_changed(
                            name, frozenset(version_of(file, folder) or ONLY_VERSION for file in files)
                        )
            except OSError as error:
                log.warning("model's folder cannot be watched", model=name, path=str(path), reason=str(error))
                await asyncio.sleep(_ABSENT_POLL_S)

    async def _refresh_changed(self, name: str, versions: frozenset[str]) -> None:
        try:
            await self._refresh(name, versions)
        except RoundhouseError as error:
            log.warning("changed files are not served", model=name, reason=error.message)
        except Exception:
            log.exception("changed files are not served", model=name)


def _folder_of(path: Path) -> Path | None:
    """Return the folder to watch for a model's path; None while the path is absent."""
    return path if path.is_dir() else path.parent if path.exists() else None
