"""The parser of the command line, the options that several commands have, and the table that they print.

A misspelt command or option names the nearest one, and shows the usage of it."""

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

WRONG_COMMAND_STATUS = 2
INTERRUPTED_STATUS = 130
INTERRUPTED = "interrupted; run the same command again to resume"

_DEFAULT_URL = "http://127.0.0.1:8080"
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


def add_command(commands: Any, name: str, description: str, example: str) -> CommandParser:
    """Add a command to the parsers that `add_commands` returned, and return its parser."""
    parser: CommandParser = commands.add_parser(
        name,
        help=description.partition(". ")[0].removesuffix(".") + ".",
        description=description,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(parser=parser)
    return parser


def add_server_options(
    parser: argparse.ArgumentParser,
    url: str | None = _DEFAULT_URL,
    url_help: str = "address of the server; default: %(default)s",
) -> None:
    """Add the address of a running server, and what gives access to it: `access_of` reads them."""
    # Without a default the command reads the address itself: that of gRPC has no scheme.
    parser.add_argument("--url", type=str if url is None else server_url, default=url, help=url_help)
    parser.add_argument("--cacert", metavar="FILE", help="PEM file of the authorities for https; default: the system's")
    parser.add_argument("--cert", metavar="FILE", help="PEM file of your own certificate, for server.tls_client_ca")
    parser.add_argument("--cert-key", metavar="FILE", help="PEM file of its key; default: the file of --cert")
    parser.add_argument("--api-key", metavar="KEY", help="default: ROUNDHOUSE_API_KEY, which other users cannot see")
    parser.add_argument(
        "--sign", action="store_true", help="sign the request, for a key that was created with --signed"
    )


def access_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `call` that give access to the server."""
    from app.cli.client import TlsOptions

    tls = TlsOptions(options.cacert, options.cert, options.cert_key)
    return {"api_key": _api_key(options), "is_signed": options.sign, "tls": tls}


def _api_key(options: argparse.Namespace) -> str:
    if options.api_key is not None:
        return str(options.api_key)
    from app.config import API_KEY_VARIABLE

    return os.environ.get(API_KEY_VARIABLE, "")


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


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows of equal length; the first is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
