"""The server: connections, protocols, pipeline, administration and command line."""

from functools import cache

from frameworks.core.extras import DISTRIBUTION


@cache
def server_version() -> str:
    """Return the version of the installed distribution, from the tags of git; `0+unknown` in a folder that is not
    installed.
    """
    # Its imports take as long as those of a protocol, and a start needs no version.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "0+unknown"
