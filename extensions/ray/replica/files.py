"""Find the files of a version on the node of a replica, and fetch those of a model with an address."""

import glob
import stat
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from extensions.ray.config import ReplicaConfig
from frameworks.core.addresses import SourceAddress
from frameworks.sources.contract import Framework

_MAX_FILES = 1000
Fetch = Callable[[SourceAddress, Framework], Path]


def newest_files(config: ReplicaConfig, path: str, fetch: Fetch | None = None) -> Path:
    """Return the folder or file of a version; of a model with an address its newest files, fetched to this node.

    Blocks. `fetch`: None for the cache of this node. Raises SourceUnavailable and InvalidModel.
    """
    address = config.entry.path
    if not isinstance(address, SourceAddress):
        return Path(path)
    framework: Framework = "onnx" if config.framework == "onnx" else "pytorch"
    return (fetch or _from_cache(config))(address, framework)


def local_files(config: ReplicaConfig, path: str, fetch: Fetch | None = None) -> Path:
    """Return the folder or file that an ingress names. It may be fetched by the ingress, and absent on this node.

    As `newest_files`.
    """
    found = Path(path)
    return found if found.is_dir() else newest_files(config, path, fetch)


def state_of(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Return name, size and time of change of the files of a version, with those beside a file that have its name.

    Another load begins when they differ. Files that cannot be read are left out.
    """
    files = path.rglob("*") if path.is_dir() else path.parent.glob(f"{glob.escape(path.name)}*")
    states = []
    for file in islice(files, _MAX_FILES):
        with suppress(OSError):
            state = file.stat()
            if stat.S_ISREG(state.st_mode):
                states.append((str(file), state.st_size, state.st_mtime_ns))
    return tuple(sorted(states))


def _from_cache(config: ReplicaConfig) -> Fetch:
    # Its modules take 20 ms, which replicas of local models do not need.
    from frameworks.sources.store import SourceStore

    store = SourceStore(config.settings.cache_dir, config.max_download_bytes, config.open_remote)
    return lambda address, framework: store.fetch(address, framework).folder
