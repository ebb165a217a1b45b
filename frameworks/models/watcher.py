"""Notices when files of a model with `watch = true` change, and has what is served of them loaded anew."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from frameworks.errors import RoundhouseError
from frameworks.models.slot import ModelSlot
from frameworks.models.version_folders import ONLY_VERSION, version_of

log = structlog.get_logger(__name__)

# A folder that is being copied is loaded when it has been quiet for so long; the library looks so often.
_QUIET_MS = 500
_LONGEST_MS = 30_000
_NOT_THERE_YET_S = 2.0

Refresh = Callable[[str, frozenset[str]], Awaitable[None]]


class FolderWatcher:
    """One task for each model that is watched. Owned by the event loop."""

    def __init__(self, refresh: Refresh) -> None:
        """`refresh(model, versions)` is called with the versions whose files have changed; it raises what goes wrong,
        which is logged.
        """
        self._refresh = refresh
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow(self, slot: ModelSlot) -> None:
        """Watches the model's path, if its entry says so. Harmless when called again."""
        if slot.entry.watch and slot.name not in self._tasks:
            self._tasks[slot.name] = asyncio.get_running_loop().create_task(self._watch(slot.name, slot.path))

    async def leave(self, name: str) -> None:
        """Watches this model no more."""
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def close(self) -> None:
        """Watches nothing more."""
        for name in list(self._tasks):
            await self.leave(name)

    async def _watch(self, name: str, path: Path) -> None:
        # Imported where a model is watched: 20 ms that no other start-up pays.
        from watchfiles import awatch

        while True:
            folder = await asyncio.to_thread(_folder_of, path)
            if folder is None:
                await asyncio.sleep(_NOT_THERE_YET_S)
                continue
            try:
                changes = awatch(folder, watch_filter=None, step=_QUIET_MS, debounce=_LONGEST_MS)
                async for changed in changes:
                    files = [Path(file) for _, file in changed]
                    if path != folder:
                        files = [file for file in files if file.name == path.name]
                    if files:
                        await self._tell(name, frozenset(version_of(file, folder) or ONLY_VERSION for file in files))
            except OSError as error:
                log.warning("model's folder cannot be watched", model=name, path=str(path), reason=str(error))
                await asyncio.sleep(_NOT_THERE_YET_S)

    async def _tell(self, name: str, versions: frozenset[str]) -> None:
        try:
            await self._refresh(name, versions)
        except RoundhouseError as error:
            log.warning("changed files are not served", model=name, reason=error.message)
        except Exception:
            log.exception("changed files are not served", model=name)


def _folder_of(path: Path) -> Path | None:
    """What is watched for a model's path; None where it is not there yet."""
    return path if path.is_dir() else path.parent if path.exists() else None
