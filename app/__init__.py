"""The server: connections, protocols, pipeline, administration and command line."""

VERSION = "0.1.0"
"""The version of pyproject.toml."""
