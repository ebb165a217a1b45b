"""The command line against a running server, and on its own."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.cli.commands import main
from tests.e2e.server import MODELS, ROOT, RunningServer

COMMANDS = (
    "serve",
    "check",
    "models",
    "infer",
    "run",
    "keys",
    "keys create",
    "keys list",
    "keys revoke",
    "keys rotate",
    "bench",
)


def output(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    """Return what the command prints; it must exit with this status."""
    assert main(arguments) == status
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    """Return the decoded output of a command with --json."""
    return json.loads(output(capsys, *arguments, "--json", status=status))


def error_text(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 1) -> str:
    """Return the one line that the command writes to standard error; it must print nothing else."""
    assert main(arguments) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


@pytest.mark.parametrize("command", COMMANDS)
def test_help_examples_parse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from app.cli.commands import _parser

    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    _, _, examples = capsys.readouterr().out.partition("example:\n")
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    assert lines
    for line in lines:
        assert line.startswith(f"roundhouse {command} ")
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", line)]
        assert _parser().parse_args(words[1:])


@pytest.mark.parametrize("arguments", [["nonsense"], ["infer", "digits"], ["infer"], ["check"], ["serve", "--prt"]])
def test_invalid_command_line_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: roundhouse" in capsys.readouterr().err


def test_models_as_table(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "models", "--url", server.url).splitlines()
    assert lines[0].split() == ["NAME", "FRAMEWORK", "TASK", "STATE", "DEVICE", "DTYPE", "MEMORY"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:]}
    assert rows["minilm"][:5] == ["pytorch", "embed", "ready", "cpu", "float32"]
    assert rows["digits"][:3] == ["onnx", "tensor", "ready"]
    assert len(rows) == len(server.client.get("/models").json()["models"])


def test_models_as_json(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    models = answer(capsys, "models", "--url", server.url + "/")["models"]
    assert {"digits", "minilm"} <= {model["name"] for model in models}


def test_infer_accepts_every_kind_of_input(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = ["--url", server.url]
    assert len(answer(capsys, "infer", "minilm", "--text", "a sentence", "another ☃", *url)["embeddings"]) == 2
    assert answer(capsys, "infer", "float32", "--data", "[[1, 2]]", *url)["output_data"] == [[1, 2]]
    assert answer(capsys, "infer", "float32", "--inputs", '{"x": [1]}', *url)["outputs"]["y"]["data"] == [1]
    (tmp_path / "body.json").write_text('{"text": "a", "top_k": 1}', encoding="utf-8")
    body = answer(capsys, "infer", "classify", "--body", f"@{tmp_path}/body.json", *url)
    assert [len(labels) for labels in body["predictions"]] == [1]
    (tmp_path / "data.json").write_text("[0.5]", encoding="utf-8")
    assert answer(capsys, "infer", "float32", "--data", f"@{tmp_path}/data.json", *url)["output_data"] == [0.5]
    monkeypatch.setattr(sys, "stdin", io.StringIO("[3, 4]"))
    assert answer(capsys, "infer", "float32", "--data", "@-", *url)["output_data"] == [3, 4]


def test_refusal_printed_and_exits_with_1(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    for name, code in (("nimilm", "model_not_found"), ("digits", "invalid_input"), ("a b/c?d#e", "not_found")):
        command = ("infer", name, "--text", "a", "--url", server.url)
        error = answer(capsys, *command, status=1)["error"]
        assert error["code"] == code
        assert error_text(capsys, *command) == error["message"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("[1", "--data: expected JSON, got another text ("),
        ("", "--data: expected JSON, got another text ("),
        ("nope", "--data: expected JSON, got another text ("),
        ("@/nowhere/file.json", "--data: expected a file, got /nowhere/file.json, which does not exist; "),
        ("@/", "--data: expected a file, got the folder /; "),
    ],
)
def test_invalid_json_exits_with_2(argument: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("infer", "digits", "--data", argument)
    assert error_text(capsys, *command, status=2).startswith(message)
    assert answer(capsys, *command, status=2)["error"]["message"].startswith(message)


def test_missing_image_is_called_missing(capsys: pytest.CaptureFixture[str]) -> None:
    line = error_text(capsys, "infer", "shapes", "--image", "/nowhere.png", status=2)
    assert line == "--image: expected a file, got /nowhere.png, which does not exist; correct the path"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "ftp://127.0.0.1", "127.0.0.1", "http://", "http://[", ""])
def test_unreachable_server_exits_with_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["models"], ["infer", "digits", "--data", "[1]"]):
        assert answer(capsys, *command, "--url", url, status=1)["error"]["code"] == "unreachable"
        assert error_text(capsys, *command, "--url", url).startswith("--url: expected ")


def calls(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return a command of each kind that calls a server, without its address."""
    texts = folder / "texts.csv"
    texts.write_text("text\na\n", encoding="utf-8")
    return {
        "models": ("models",),
        "infer": ("infer", "minilm", "--text", "a"),
        "bench": ("bench", "--model", "minilm", "--requests", "1"),
        "run": ("run", "minilm", str(texts), str(folder / "out.csv"), "--column", "text"),
    }


@pytest.mark.parametrize("command", ["models", "infer", "bench", "run"])
def test_https_for_plain_server_is_explained(
    command: str, server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = ("--url", f"https://127.0.0.1:{server.port}")
    line = error_text(capsys, *calls(tmp_path)[command], *url)
    assert line.startswith("--url: expected ")
    assert line.endswith("got plain HTTP; say http://, or name the port of https")


def test_model_that_server_lacks_is_named(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, words in calls(tmp_path).items():
        if command != "models":
            status = 2 if command == "run" else 1
            unknown = [word.replace("minilm", "no-such-model") for word in words]
            assert '"no-such-model"' in error_text(capsys, *unknown, "--url", server.url, status=status)


def test_unknown_model_of_run_mentions_url_and_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = [word.replace("minilm", "no-such-model") for word in calls(tmp_path)["run"]]
    line = error_text(capsys, *run, status=2)
    assert line.startswith('MODEL: expected the path or address of a model, got "no-such-model"; ')
    assert "--url" in line
    assert "--config" in line
    assert "none of digits" in error_text(capsys, *run, "--config", str(ROOT / "config.toml"), status=2)


def test_wrong_input_of_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in (("a.csv", b"\xff\xfe\0"), ("a.jsonl", b"\xff\n"), ("a.parquet", b"\xff")):
        (tmp_path / name).write_bytes(content)
        command = ("run", str(MODELS / "minilm-onnx"), str(tmp_path / name), str(tmp_path / "out.csv"))
        line = error_text(capsys, *command, "--column", "text", status=2)
        assert line.startswith(f"{tmp_path / name}: expected a ")
    texts, file = str(tmp_path / "texts.csv"), tmp_path / "a.csv"
    (tmp_path / "texts.csv").write_text("text\na\n", encoding="utf-8")
    for more, status, message in (
        (
            (str(file / "out.csv"),),
            1,
            f"{file / 'out.csv.parts'}: expected a path that can be read and written, got Not a",
        ),
        (
            (str(tmp_path / "out.csv"), "--errors", str(file / "bad")),
            2,
            "--errors: expected a file in an existing folder",
        ),
    ):
        run = ("run", str(MODELS / "minilm-onnx"), texts, *more, "--column", "text")
        assert error_text(capsys, *run, status=status).startswith(message)
    missing = ("run", str(MODELS / "minilm-onnx"), "nowhere.csv", str(tmp_path / "out.csv"), "--column", "text")
    assert 'got "nowhere.csv", which does not exist' in error_text(capsys, *missing, status=2)


@pytest.mark.parametrize(
    ("file", "got"),
    [
        ("missing.pem", "{file}, which does not exist; correct the path"),
        ("", "the folder {file}; correct the path"),
        ("text.pem", "{file} without one; name another file"),
    ],
)
def test_wrong_authorities_are_named_by_each_command(
    file: str, got: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.pem").write_text("no certificate", encoding="utf-8")
    path = str(tmp_path / file) if file else str(tmp_path)
    tls = ("--url", "https://127.0.0.1:9", "--cacert", path)
    for command, words in calls(tmp_path).items():
        line = error_text(capsys, *words, *tls, status=2 if command in ("bench", "run") else 1)
        assert line.startswith("--cacert: expected ")
        assert line.endswith("got " + got.format(file=path))


def test_unknown_base_path_reported(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    # No routes exist below this path; the error has the usual form.
    error = answer(capsys, "models", "--url", server.url + "/docs", status=1)["error"]
    assert error["code"] == "not_found"


def test_check_reports_issues_with_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[server]\nprot = 1\nhost = 3\n\n[[models.onnx_models]]\nname = "a"\npath = "no"\n', "utf-8")
    lines = output(capsys, "check", str(file), status=2).splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        [f"{file}:2", "server.prot"],
        [f"{file}:3", "server.host"],
        [f"{file}:7", "models.onnx_models[0].path"],
    ]
    assert "no such file" in output(capsys, "check", str(tmp_path / "none.toml"), status=2)
    issues = answer(capsys, "check", str(file), status=2)
    assert [(issue["line"], issue["key"], issue["is_error"]) for issue in issues] == [
        (2, "server.prot", True), (3, "server.host", True), (7, "models.onnx_models[0].path", True),
    ]  # fmt: skip
    file.write_text("", encoding="utf-8")
    assert output(capsys, "check", str(file)) == f"{file}: no issues\n"
    assert answer(capsys, "check", str(file)) == []


def test_config_of_repository_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no issues" in output(capsys, "check", str(ROOT / "config.toml"))


def test_module_is_command() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "app", "check", "config.toml"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "config.toml: no issues\n")
