"""The parser of the command line: a misspelt command or option names the nearest one, and shows the usage of it."""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

WRONG_COMMAND_STATUS = 2

_HOST_AND_PORT = re.compile(r"(?:[\w.-]+|\[[\da-fA-F:]+\])(?::\d+)?(?:/|$)")


class CommandParser(argparse.ArgumentParser):
    """A parser whose commands are of this class too, as argparse has it."""

    commands: Mapping[str, "CommandParser"] = {}

    def add_commands(self, metavar: str) -> Any:
        """Return what adds the commands."""
        added = self.add_subparsers(required=True, metavar=metavar)
        self.commands = added.choices
        return added

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the options. Ends the process with status 2 for a wrong command line, as argparse does."""
        self.set_defaults(parser=self)
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            parser: CommandParser = options.parser
            parser.error(f"unknown arguments: {' '.join(unknown)}{parser._nearest_option(unknown)}")
        return options

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and end the process with status 2."""
        found = re.search(r"invalid choice: '([^']*)'", message)
        if found is None or not self.commands:
            super().error(message)
        nearest = get_close_matches(found[1], self.commands, 1)
        if not nearest:
            super().error(f'unknown command "{found[1]}"; the commands are {", ".join(self.commands)}')
        self.commands[nearest[0]].print_usage(sys.stderr)
        self.exit(WRONG_COMMAND_STATUS, f'{self.prog}: unknown command "{found[1]}"; did you mean {nearest[0]}?\n')

    def _nearest_option(self, unknown: Sequence[str]) -> str:
        known = [name for action in self._actions for name in action.option_strings]
        wrong = next((each.partition("=")[0] for each in unknown if each.startswith("-")), "")
        nearest = get_close_matches(wrong, known, 1)
        return f"; did you mean {nearest[0]}?" if nearest else ""


def server_url(text: str) -> str:
    """Return the address of a server; host:port without a scheme is http."""
    return text if "://" in text or not _HOST_AND_PORT.match(text) else f"http://{text}"
