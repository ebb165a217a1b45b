"""The versions that a model's path holds: a folder of numbered folders, or the files of one version."""

import re
from pathlib import Path

from frameworks.settings import VersionPolicy

ONLY_VERSION = "1"
"""The version of a model whose path holds no version folders."""

_NUMBER = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


def find_versions(path: Path) -> dict[str, Path]:
    """Version → its path, the oldest first. A path without numbered folders is version "1" itself."""
    try:
        numbered = [each for each in path.iterdir() if _NUMBER.fullmatch(each.name) and each.is_dir()]
    except OSError:  # a file, or nothing: who loads it says what is wrong
        numbered = []
    if not numbered:
        return {ONLY_VERSION: path}
    return {each.name: each for each in sorted(numbered, key=lambda folder: int(folder.name))}


def served_versions(found: list[str], policy: VersionPolicy) -> list[str]:
    """Those of the versions, oldest first, that an entry's `version_policy` has served."""
    if policy == "all":
        return found
    if policy == "latest":
        return found[-1:]
    return [version for version in found if int(version) in policy]


def version_of(file: Path, folder: Path) -> str | None:
    """The version in whose folder below `folder` a file lies; None where it lies in none."""
    try:
        first = file.relative_to(folder).parts[:1]
    except ValueError:
        return None
    return first[0] if first and _NUMBER.fullmatch(first[0]) else None
