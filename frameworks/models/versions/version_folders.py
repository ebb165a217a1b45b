"""Find the versions below a model's path: numbered folders, or the files of a single version."""

import re
from pathlib import Path

from frameworks.core.settings.entry_values import VersionPolicy

ONLY_VERSION = "1"
"""The version of a model whose path has no version folders."""

_NUMBER = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


def find_versions(path: Path) -> dict[str, Path]:
    """Map versions to paths, oldest first. A path without numbered folders is version "1" itself."""
    try:
        numbered = [each for each in path.iterdir() if is_version_folder(each)]
    except OSError:  # a file, or absent: the load reports the reason
        numbered = []
    if not numbered:
        return {ONLY_VERSION: path}
    return {each.name: each for each in sorted(numbered, key=lambda folder: int(folder.name))}


def is_version_folder(path: Path) -> bool:
    return _NUMBER.fullmatch(path.name) is not None and path.is_dir()


def served_versions(found: list[str], policy: VersionPolicy) -> list[str]:
    """Return the versions, oldest first, that the `version_policy` of an entry serves."""
    if policy == "all":
        return found
    if policy == "latest":
        return found[-1:]
    return [version for version in found if int(version) in policy]


def version_of(file: Path, folder: Path) -> str | None:
    """Return the version whose folder below `folder` holds a file; None for other files."""
    try:
        first = file.relative_to(folder).parts[:1]
    except ValueError:
        return None
    return first[0] if first and _NUMBER.fullmatch(first[0]) else None
