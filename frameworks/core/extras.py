"""The command that adds an extra of this project to the installation that runs."""

from pathlib import Path

DISTRIBUTION = "roundhouse-server"
"""The name on package indexes. `roundhouse` is another project there."""

_MAKEFILE = Path(__file__).parents[2] / "Makefile"


def install_command(extra: str) -> str:
    """Return what to type: make in a checkout, whose versions are pinned, and pip elsewhere."""
    if _MAKEFILE.is_file():
        return f"make install EXTRAS={extra}"
    return f"pip install '{DISTRIBUTION}[{extra}]'"
