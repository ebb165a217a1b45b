"""Test the store with several processes, and with one that is killed."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import fetch_child
from tests.support.hub import Hub, loopback_hub

pytestmark = pytest.mark.extended

WEIGHTS = bytes(range(256)) * 8000
HELD = 1 << 20


@pytest.fixture
def hub() -> Iterator[Hub]:
    with loopback_hub() as running:
        running.publish("org/name", {"config.json": b"{}", "model.safetensors": WEIGHTS})
        running.web.faults.hold_after = HELD
        yield running


@pytest.fixture
def start(hub: Hub, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, **hub.environment, "PYTHONPATH": root, "HF_HOME": str(tmp_path)}

    def begin() -> subprocess.Popen[str]:
        words = [sys.executable, fetch_child.__file__, "hf://org/name", str(tmp_path)]
        started.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def part_bytes(folder: Path) -> int:
    return sum(part.stat().st_size for part in folder.glob("sources/hf/*/partial/*/model.safetensors.part"))


def result(process: subprocess.Popen[str]) -> tuple[int, Path]:
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    size, folder = output.splitlines()[-1].split(" ", 1)
    return int(size), Path(folder)


def test_killed_download_is_resumed(hub: Hub, tmp_path: Path, start: Callable[[], subprocess.Popen[str]]) -> None:
    killed = start()
    wait_until(lambda: part_bytes(tmp_path) >= HELD // 2)
    killed.kill()
    killed.wait(60)
    kept = part_bytes(tmp_path)
    hub.web.faults.hold_after = None
    size, folder = result(start())
    assert size == len(WEIGHTS) - kept
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert [each.headers.get("range") for each in hub.web.requests if "/cdn/" in each.path] == [None, f"bytes={kept}-"]
    assert not list(tmp_path.glob("sources/hf/*/partial/*"))


def test_processes_download_once(hub: Hub, tmp_path: Path, start: Callable[[], subprocess.Popen[str]]) -> None:
    processes = [start(), start()]
    wait_until(lambda: [each.path.startswith("/api/") for each in hub.web.requests].count(True) == 2)
    wait_until(lambda: part_bytes(tmp_path) >= HELD // 2)
    hub.web.faults.go_on.set()
    (first, folder), (second, other) = (result(process) for process in processes)
    assert folder == other
    assert sorted([first, second]) == [0, len(WEIGHTS) + 2]
    assert len(hub.downloads()) == 2


def test_waiting_process_downloads_after_kill(
    hub: Hub, tmp_path: Path, start: Callable[[], subprocess.Popen[str]]
) -> None:
    killed = start()
    wait_until(lambda: part_bytes(tmp_path) >= HELD // 2)
    waiting = start()
    wait_until(lambda: [each.path.startswith("/api/") for each in hub.web.requests].count(True) == 2)
    hub.web.faults.hold_after = None
    killed.kill()
    size, folder = result(waiting)
    assert 0 < size < len(WEIGHTS)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
