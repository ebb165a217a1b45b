"""The README's commands are run as they stand, and answered as it says; its tables agree with the code."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import pytest

from app.protocols.errors import ERROR_CODES
from app.protocols.native.fields import FIELDS
from tests.e2e.server import GRPC_PORT, ROOT, RunningServer, free_port

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```sh\n(.*?)```\n```json\n(.*?)```", README, flags=re.DOTALL)
PROGRAMS = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", README, flags=re.DOTALL)
_ANY = "…"
_VARIES = {"latency_ms"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The repository's own config, as `make serve` starts it, on free ports."""
    with RunningServer(["--config", "config.toml", "--port", "0"], {GRPC_PORT: free_port()}) as running:
        yield running.wait_ready()


@pytest.mark.parametrize(("command", "answer"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_answers_what_the_readme_says(server: RunningServer, command: str, answer: str) -> None:
    assert "http://127.0.0.1:8080" in command
    # By a shell, into which it would be pasted.
    words = ["sh", "-ec", command.replace("http://127.0.0.1:8080", server.url)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    check_agrees(json.loads(done.stdout), read_elided(answer))


@pytest.mark.parametrize(("program", "printed"), PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_prints_what_the_readme_says(server: RunningServer, program: str, printed: str) -> None:
    assert "127.0.0.1:8080" in program or "127.0.0.1:8081" in program
    here = program.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")
    here = here.replace("127.0.0.1:8081", f"127.0.0.1:{server.grpc_port}")
    words = [sys.executable, "-c", here]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    wanted = re.escape(printed.strip()).replace(_ANY, ".+")
    assert re.fullmatch(wanted, done.stdout.strip(), flags=re.DOTALL), done.stdout


def test_there_is_an_example_for_every_kind_of_question() -> None:
    commands = " ".join(command for command, _ in EXAMPLES)
    assert all(f'"{question}"' in commands for question in ("input_data", "inputs", "text"))
    assert len(EXAMPLES) == README.count("```sh\n")
    assert len(PROGRAMS) == README.count("```python\n") > 0


def test_the_field_table_has_the_fields_of_infer() -> None:
    table = re.search(r"\| field of `/infer` .*?\n\n", README, flags=re.DOTALL)
    assert table
    first_cells = [line.split("|")[1] for line in table[0].splitlines()[2:] if line]
    assert set(re.findall(r"`(\w+)`", " ".join(first_cells))) == FIELDS


def test_the_error_table_has_every_code() -> None:
    table = re.search(r"\| status \| codes \|.*?\n\n", README, flags=re.DOTALL)
    assert table
    rows = {row.split("|")[1]: row.split("|")[2] for row in table[0].splitlines()[2:] if row}
    for status, codes in ERROR_CODES.items():
        cell = next(text for statuses, text in rows.items() if str(status) in statuses)
        assert all(f"`{code}`" in cell for code in codes), (status, codes)


def test_the_picture_of_the_house_names_what_is_there() -> None:
    picture = README.split("\n```\napp/ ")[1].split("```")[0]
    folder = room = ROOT / "app"
    for line in picture.splitlines()[1:]:
        indent = len(line) - len(line.lstrip())
        names = list(takewhile(re.compile(r"[\w./]+\.(?:py|txt)|[\w/]+/").fullmatch, line.split()))
        if indent == 0 and names:
            folder = ROOT / names[0]
            names = names[:1]
        base = ROOT if indent == 0 else room if indent == 4 else folder
        if indent == 2 and names and names[0].endswith("/"):
            room = folder / names[0]
        for name in names:
            assert (base / name).exists(), f"{name} is in the README's picture and not in {base}"


def read_elided(answer: str) -> Any:
    """JSON in which `…` stands for any rest: of a list, of an object, or a whole string."""
    text = answer.replace(f", {_ANY}]", f', "{_ANY}"]').replace(f", {_ANY}}}", f', "{_ANY}": 0}}')
    return json.loads(text)


def check_agrees(came: Any, written: Any) -> None:
    """Numbers within 1 % or 0.0001; `latency_ms` as it comes; a rest only where the README has `…`."""
    if isinstance(written, dict):
        keys = written.keys() - {_ANY}
        assert keys <= came.keys() if _ANY in written else keys == came.keys(), (came.keys(), keys)
        for key in keys - _VARIES:
            check_agrees(came[key], written[key])
    elif isinstance(written, list):
        rest = bool(written) and written[-1] == _ANY
        wanted = written[:-1] if rest else written
        assert len(came) > len(wanted) if rest else len(came) == len(wanted)
        for one, other in zip(came, wanted, strict=False):
            check_agrees(one, other)
    elif isinstance(written, float):
        assert came == pytest.approx(written, rel=0.01, abs=1e-4)
    elif written != _ANY:
        assert came == written
