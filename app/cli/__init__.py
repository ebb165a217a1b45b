"""Run the command line: serve, check, models, infer, keys, and the commands of extensions."""

from app.cli.commands import main

__all__ = ["main"]
