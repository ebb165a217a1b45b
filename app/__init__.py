"""The doors: the wire, its protocols, and the people who call."""

VERSION = "0.1.0"
"""As pyproject.toml has it."""
