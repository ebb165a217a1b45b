"""Which models there are and how they stand: the index of the protocol's repository extension."""

from collections.abc import Iterable, Mapping
from typing import Any

from app.protocols.errors import NotSupported
from frameworks.errors import ModelUnloaded, RoundhouseError
from frameworks.models.slot import ModelSlot, ModelState
from frameworks.models.version import ModelVersion

READY = "READY"
_ON_DEMAND = "not in memory; whoever asks for it waits for its load"


def repository_index(slots: Iterable[ModelSlot], ready_only: bool) -> list[dict[str, str]]:
    """As the `models` of RepositoryIndexResponse: every version that was found, or those alone that answer."""
    entries = [_entry(slot, version) for slot in slots for version in slot.versions.values()]
    return [entry for entry in entries if entry["state"] == READY or not ready_only]


def check_load_parameters(parameters: Mapping[str, Any]) -> None:
    """Raises NotSupported for what would have a model loaded otherwise than its entry says. What is not known is
    harmless.
    """
    for name in parameters:
        if name == "config" or name.startswith("file:"):
            raise NotSupported(
                f"parameters.{name[:200]}: a model is loaded as its entry in config.toml says; POST /models registers "
                "one that is to run otherwise"
            )


def _entry(slot: ModelSlot, version: ModelVersion) -> dict[str, str]:
    state, reason = _standing(slot, version)
    return {
        "name": slot.name,
        "version": version.version,
        "state": state,
        # A message may quote a file's name, which need not be UTF-8.
        "reason": reason.encode("utf-8", "replace").decode(),
    }


def _standing(slot: ModelSlot, version: ModelVersion) -> tuple[str, str]:
    """Triton's word for the state, and why it is so."""
    if version.version not in slot.answering:
        return "UNAVAILABLE", "not among the versions that the entry's version_policy has served"
    try:
        version.described()
    except ModelUnloaded:
        return "UNLOADING" if version.state is ModelState.DRAINING else "UNAVAILABLE", "unloaded"
    except RoundhouseError as error:
        return "LOADING" if version.state is ModelState.LOADING else "UNAVAILABLE", error.message
    return READY, "" if version.is_ready else _ON_DEMAND
