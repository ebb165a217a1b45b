"""`roundhouse run` as a process of its own: ended at any time, and against a running server."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.cli.commands import main
from tests.e2e.server import MODELS, ROOT, RunningServer

DIGITS = str(MODELS / "digits")
ROWS = 2000
WINDOW = 8


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Parquet file with images of 64 numbers, and a row without one."""
    path = tmp_path_factory.mktemp("images") / "images.parquet"
    pixels = np.random.default_rng(0).integers(0, 17, (ROWS, 64)).astype(np.float32)
    column = pa.array([None if i == 77 else row for i, row in enumerate(pixels)], pa.list_(pa.float32(), 64))
    pq.write_table(pa.table({"id": range(ROWS), "pixels": column}), path, row_group_size=500)
    return path


def command(source: Path, output: Path, *more: str) -> list[str]:
    words = [DIGITS, str(source), str(output), "--columns", "image=pixels", "--window", str(WINDOW), *more]
    return [*words, "--errors", str(output.with_suffix(".errors"))]


def start(arguments: list[str], **environ: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "app", "run", *arguments]
    return subprocess.Popen(words, cwd=ROOT, env=os.environ | environ, stderr=subprocess.PIPE, text=True)


def wait_for_parts(output: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until this number of windows is done, or the process has ended."""
    parts = output.with_name(output.name + ".parts")
    while len(list(parts.glob("*/*.arrow"))) < count and process.poll() is None:
        time.sleep(0.001)


def check_output(output: Path, images: Path) -> None:
    table = pq.read_table(output)
    assert table["id"].to_pylist() == [i for i in range(ROWS) if i != 77]
    assert table.column_names[:3] == ["id", "pixels", "output_label"]
    whole = output.with_name("whole.parquet")
    if not whole.exists():
        assert main(["run", *command(images, whole)]) == 3
    assert table["output_label"].equals(pq.read_table(whole)["output_label"])
    (error,) = [json.loads(line) for line in output.with_suffix(".errors").read_text().splitlines()]
    assert (error["row"], error["reason"]) == (78, "pixels: expected a tensor, got null")
    assert not output.with_name(output.name + ".parts").exists()


@pytest.mark.extended
def test_killed_run_resumes(images: Path, tmp_path: Path) -> None:
    output = tmp_path / "killed.parquet"
    arguments = command(images, output)
    for count in (3, 40, 90):
        with start(arguments) as process:
            wait_for_parts(output, count, process)
            process.kill()
        assert process.returncode == -signal.SIGKILL
    with start(arguments) as process:
        _, printed = process.communicate()
    assert process.returncode == 3, printed
    assert f"of {ROWS:,} rows were done" in printed
    check_output(output, images)


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_resumes(images: Path, tmp_path: Path, number: signal.Signals) -> None:
    output = tmp_path / "interrupted.parquet"
    arguments = command(images, output)
    with start(arguments) as process:
        wait_for_parts(output, 5, process)
        process.send_signal(number)
        _, printed = process.communicate()
    assert process.returncode == 130, printed
    assert "run the same command again to resume" in printed
    assert main(["run", *arguments]) == 3
    check_output(output, images)


# test_process.py interrupts a server that compiles.
@pytest.mark.nightly
def test_interrupt_while_compiling_ends_run(tmp_path: Path) -> None:
    """The code takes 10 seconds and more, and is not made before the end."""
    source, code, config = tmp_path / "texts.jsonl", tmp_path / "code", tmp_path / "config.toml"
    source.write_text('{"prompt": "The"}\n')
    entry = '[[models.torch_models]]\nname = "m"\npath = "{}"\ndtype = "int8"\n'
    config.write_text(entry.format(MODELS / "tiny-llama"), encoding="utf-8")
    words = ["m", str(source), str(tmp_path / "out.jsonl"), "--column", "prompt", "--config", str(config)]
    with start(words, NUMBA_CACHE_DIR=str(code)) as process:
        while not list(code.glob("*/compiling.lock")) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate()
    assert process.returncode == 130, printed
    assert not list(code.rglob("*.code"))


def rows_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_server_gives_same_results(server: RunningServer, tmp_path: Path) -> None:
    source = tmp_path / "texts.csv"
    texts = ["a short text", "a text with more words than the other one", "", "the last " * 40]
    source.write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(texts)))
    errors = ["--errors", str(tmp_path / "errors")]
    shared = ["--column", "text", "--no-normalize", *errors]
    remote, local = tmp_path / "remote.jsonl", tmp_path / "local.jsonl"
    assert main(["run", "minilm", str(source), str(remote), "--url", server.url, *shared]) == 3
    assert main(["run", str(MODELS / "minilm"), str(source), str(local), *shared]) == 3
    assert [row["id"] for row in rows_of(remote)] == ["0", "1", "3"]
    for one, other in zip(rows_of(remote), rows_of(local), strict=True):
        np.testing.assert_allclose(one["embedding"], other["embedding"], atol=1e-4)


def test_long_text_is_bad_row(server: RunningServer, tmp_path: Path) -> None:
    source, output = tmp_path / "texts.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("short", "word " * 2000, "last")))
    arguments = ["run", "minilm", str(source), str(output), "--column", "text", "--no-truncate", "--url", server.url]
    assert main(arguments) == 1
    assert main([*arguments, "--errors", str(tmp_path / "errors")]) == 3
    (error,) = rows_of(tmp_path / "errors")
    assert error["row"] == 2
    assert error["reason"].startswith("text: ")
    assert [row["text"] for row in rows_of(output)] == ["short", "last"]


def test_prompts_are_continued(server: RunningServer, tmp_path: Path) -> None:
    source, output = tmp_path / "prompts.csv", tmp_path / "out.parquet"
    source.write_text("prompt\nThe module\nA test\n")
    arguments = ["run", "tiny-llama", str(source), str(output), "--column", "prompt", "--url", server.url]
    assert main([*arguments, "--options", '{"max_tokens": 5, "temperature": 0}']) == 0
    table = pq.read_table(output)
    assert table.column_names == ["prompt", "generated", "finish_reason", "tokens_generated"]
    assert all(1 <= number <= 5 for number in table["tokens_generated"].to_pylist())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([DIGITS, "{source}", "out.csv", "--column", "text"], "image"),
        ([DIGITS, "{source}", "out.csv", "--columns", "text"], "expected inputs of the model, image"),
        (["minilm", "{source}", "out.csv", "--column", "text", "--top-k", "2", "--url", "{url}"], "top_k"),
        (["minilm", "{source}", "out.csv", "--column", "absent", "--url", "{url}"], "expected one of text"),
        (["absent", "{source}", "out.csv", "--column", "text", "--url", "{url}"], "absent"),
        ([DIGITS, "{source}", "out.csv", "--column", "text", "--options", '{"n": 2}'], "leave them out"),
        ([DIGITS, "{source}", "out.csv", "--column", "text", "--window", "0"], "--window"),
        (["nowhere", "{source}", "out.csv", "--column", "text"], "nowhere"),
    ],
)
def test_wrong_command_exits_with_2(
    server: RunningServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.csv").write_text("text\nhello\n")
    words = [word.replace("{source}", "texts.csv").replace("{url}", server.url) for word in arguments]
    assert main(["run", *words]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["texts.csv"]
