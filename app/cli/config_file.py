"""Find the config file of a command."""

import os
from collections.abc import Sequence
from pathlib import Path


def config_file(named: Path | None, models: Sequence[str] = ()) -> Path | None:
    """Return `named` (of --config), else ROUNDHOUSE_CONFIG, else ./config.toml if it exists; None for no file.

    `models`: paths on the command line. With one, the config.toml in this folder must not add other models.
    """
    if named is not None:
        return named
    if variable := os.environ.get("ROUNDHOUSE_CONFIG"):
        return Path(variable)
    here = Path("config.toml")
    return here if here.is_file() and not models else None
