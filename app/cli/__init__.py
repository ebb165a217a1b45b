"""Run the command line: serve, check, models, infer, run, keys, bench."""

from app.cli.commands import main

__all__ = ["main"]
