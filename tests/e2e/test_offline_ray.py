"""`roundhouse run --ray` on a cluster of this machine: the command is interrupted, and it and workers are killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.cli.commands import main
from tests.e2e.server import MODELS, ROOT
from tests.support.alike import check_alike

pytestmark = [pytest.mark.ray, pytest.mark.extended]

ROWS = 600
_WAIT_S = 240
_LOG_LINES = 25


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Parquet file with images of 64 numbers, and a row without one."""
    path = tmp_path_factory.mktemp("images") / "images.parquet"
    pixels = np.random.default_rng(0).integers(0, 17, (ROWS, 64)).astype(np.float32)
    column = pa.array([None if i == 77 else row for i, row in enumerate(pixels)], pa.list_(pa.float32(), 64))
    pq.write_table(pa.table({"id": range(ROWS), "pixels": column}), path)
    return path


def command(source: Path, output: Path) -> list[str]:
    words = [str(MODELS / "digits"), str(source), str(output), "--columns", "image=pixels", "--window", "2"]
    return [*words, "--errors", str(output.with_suffix(".errors"))]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "app", "run", *arguments, "--ray", "--workers", "2", "--worker-cpus", "1"]
    # A cluster of its own, whose workers are its children.
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    # The default, 15, lets the workers starve beside other tests.
    environment["RAY_worker_niceness"] = "0"
    # Ray may end the command without a message: its logs say why.
    environment["RAY_BACKEND_LOG_LEVEL"] = "info"
    # A process group of its own, as a shell starts it.
    return subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def ray_logs(pid: int) -> str:
    """Return the last lines of the logs of the cluster that a command started."""
    names = ("python-core-driver*.log", "raylet.out", "gcs_server.out")
    paths = [path for name in names for path in Path(gettempdir(), "ray").glob(f"session_*_{pid}/logs/{name}")]
    return "\n".join(line for path in paths for line in (path.name, *path.read_text().splitlines()[-_LOG_LINES:]))


def wait_for_parts(output: Path, count: int, process: subprocess.Popen[str]) -> None:
    """Wait until this number of windows is done."""
    parts = output.with_name(output.name + ".parts")
    end_s = time.monotonic() + _WAIT_S
    while len(list(parts.glob("*/*.arrow"))) < count:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end_s
        time.sleep(0.01)


def workers_of(process: subprocess.Popen[str]) -> Iterator[psutil.Process]:
    for each in psutil.Process(process.pid).children(recursive=True):
        try:
            if "MapWorker" in " ".join(each.cmdline()):
                yield each
        except psutil.NoSuchProcess:
            continue


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run without Ray."""
    path = tmp_path_factory.mktemp("whole") / "whole.parquet"
    assert main(["run", *command(images, path)]) == 3
    return path


def check_complete(output: Path, numbers: set[str]) -> set[str]:
    """Check the finished windows of an interrupted run, and return their names. `numbers`: of those before."""
    assert not output.exists()
    (folder,) = output.with_name(output.name + ".parts").glob("*/")
    parts = {path.stem: path for path in folder.glob("*.arrow")}
    assert parts.keys() > numbers
    for path in parts.values():
        assert pa.ipc.open_file(path.read_bytes()).read_all().num_rows in (1, 2)
        assert path.with_suffix(".errors").exists()
    return set(parts)


def test_interrupted_run_keeps_complete_windows(images: Path, whole: Path, tmp_path: Path) -> None:
    """Ctrl-C is sent to the process group, SIGTERM to the command."""
    output = tmp_path / "out.parquet"
    numbers: set[str] = set()
    for number in (signal.SIGINT, signal.SIGTERM):
        with start(command(images, output)) as process:
            wait_for_parts(output, len(numbers) + 10, process)
            children = psutil.Process(process.pid).children(recursive=True)
            (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
            _, printed = process.communicate(timeout=_WAIT_S)
        assert process.returncode == 130, f"{printed}\n{ray_logs(process.pid)}"
        assert "run the same command again to resume" in printed
        _, left = psutil.wait_procs(children, _WAIT_S)
        assert not left
        numbers = check_complete(output, numbers)
    with start(command(images, output)) as process:
        _, printed = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 3, printed
    assert f"of {ROWS:,} rows were done" in printed
    check_alike(pq.read_table(output).to_pylist(), pq.read_table(whole).to_pylist())


@pytest.mark.nightly
def test_killed_workers_and_command_lose_nothing(images: Path, whole: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    with start(command(images, output)) as process:
        wait_for_parts(output, 20, process)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    with start(command(images, output)) as process:
        wait_for_parts(output, 40, process)
        killed = list(workers_of(process))
        for worker in killed[:1]:
            worker.kill()
        _, printed = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 3, printed
    assert killed
    assert f"of {ROWS:,} rows were done" in printed
    check_alike(pq.read_table(output).to_pylist(), pq.read_table(whole).to_pylist())
    (error,) = [json.loads(line) for line in output.with_suffix(".errors").read_text().splitlines()]
    assert (error["row"], error["reason"]) == (78, "pixels: expected a tensor, got null")
    assert not output.with_name(output.name + ".parts").exists()


def test_workers_read_images_of_prompts(tmp_path: Path) -> None:
    model, output = MODELS / "tiny-vision", tmp_path / "out.jsonl"
    shutil.copy(model / "example.jpg", tmp_path / "star.jpg")
    source, errors = tmp_path / "in.csv", tmp_path / "errors"
    source.write_text("prompt,image\n" + "What is this?,star.jpg\n" * 4 + "What is this?,gone.jpg\n")
    words = [str(model), str(source), str(output), "--columns", "prompt,image", "--window", "2"]
    with start([*words, "--errors", str(errors)]) as process:
        _, printed = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 3, printed
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["generated"] for row in rows] == ["A red star."] * 4
    error = json.loads(errors.read_text())
    assert (error["row"], error["reason"]) == (5, "image[0]: expected a file, got a path without one")
