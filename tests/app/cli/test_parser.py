"""The command line without a command, with a misspelt one, and with a misspelt option."""

import subprocess
import sys

import pytest

from app import server_version
from app.cli.commands import main


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what a wrong command line prints."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"roundhouse {server_version()}\n"


def test_no_command_prints_all_commands() -> None:
    done = subprocess.run([sys.executable, "-m", "app"], capture_output=True, text=True, check=True)
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    described = {words[0]: words[1] for words in lines if len(words) == 2}
    for command in ("serve", "check", "models", "infer", "run", "deploy", "keys", "bench"):
        assert described[command].endswith("."), done.stdout


@pytest.mark.parametrize(
    ("arguments", "usage", "message"),
    [
        (["serv"], "usage: roundhouse serve ", 'roundhouse: unknown command "serv"; did you mean serve?'),
        (["keys", "creat"], "usage: roundhouse keys create ", 'unknown command "creat"; did you mean create?'),
        (["xyz"], "usage: roundhouse ", 'unknown command "xyz"; the commands are serve, check, '),
        (["serve", "--prot", "1"], "usage: roundhouse serve ", "unknown arguments: --prot; did you mean --port?"),
        (["serve", "--prot=1"], "usage: roundhouse serve ", "did you mean --port?"),
        (["check", "a", "b"], "usage: roundhouse check ", "error: unknown arguments: b\n"),
        (["--verison"], "usage: roundhouse ", "the following arguments are required: COMMAND"),
    ],
)
def test_wrong_command_line_names_remedy(
    capsys: pytest.CaptureFixture[str], arguments: list[str], usage: str, message: str
) -> None:
    printed = refused(capsys, *arguments)
    assert printed.startswith(usage)
    assert message in printed
