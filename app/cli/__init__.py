"""Run the command line: serve, check, models, infer, keys."""

from app.cli.commands import main

__all__ = ["main"]
