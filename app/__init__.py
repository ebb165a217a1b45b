"""The server: connections, protocols, pipeline, administration and command line."""

from importlib.metadata import PackageNotFoundError, version

from frameworks.core.extras import DISTRIBUTION

try:
    VERSION = version(DISTRIBUTION)
except PackageNotFoundError:
    VERSION = "0+unknown"
"""The version of the installed distribution, from the tags of git; `0+unknown` in a folder that is not installed."""
