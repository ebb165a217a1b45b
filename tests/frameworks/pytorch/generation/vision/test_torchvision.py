"""Model types whose processors need torchvision are served where it is installed, and so are videos."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.models.vision.catalogue import NEEDS_TORCHVISION, READ_VIDEOS

ROOT = Path(__file__).resolve().parents[5]
PROGRAM = (sys.executable, "-m", "tests.frameworks.pytorch.generation.vision.with_torchvision")
_FOLDER = ROOT / "build" / "torchvision"
_USUAL = ["gemma4", "glm4v", "internvl", "llava_onevision", "qwen2_5_vl", "qwen3_vl", "smolvlm", "video_llama_3"]
"""A model type of each way to read videos."""
_PACKAGES = {"torchvision": "torchvision==0.28.0", "num2words": "num2words==0.5.14"}


def environment() -> dict[str, str]:
    """Return the environment of a process with torchvision, which is installed into a folder of its own."""
    _FOLDER.parent.mkdir(exist_ok=True)
    # Several workers of pytest may begin with it.
    with FileLock(_FOLDER.with_suffix(".lock")):
        missing = [requirement for name, requirement in _PACKAGES.items() if not list(_FOLDER.glob(f"{name}*"))]
        if missing:
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(_FOLDER)]
            installed = subprocess.run([*pip, *missing], check=False, capture_output=True, text=True, timeout=600)
            assert installed.returncode == 0, installed.stderr
    return {**os.environ, "PYTHONPATH": f"{_FOLDER}{os.pathsep}{ROOT}"}


def printed(*arguments: str) -> list[str]:
    """Return the lines that a process with torchvision prints."""
    run = subprocess.run(
        [*PROGRAM, *arguments],
        cwd=ROOT,
        env=environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.splitlines()


@pytest.mark.extended
def test_texts_with_torchvision_equal_generate() -> None:
    names = sorted(NEEDS_TORCHVISION)
    lines = [line.split() for line in printed("images", *names)]
    assert [line[0] for line in lines if line and line[0] in names] == names


@pytest.mark.extended
def test_texts_after_videos_equal_generate() -> None:
    compare_videos(_USUAL)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(3))
def test_texts_after_rarer_videos_equal_generate(part: int) -> None:
    compare_videos(sorted(READ_VIDEOS - set(_USUAL))[part::3])


def compare_videos(names: list[str]) -> None:
    lines = printed("videos", *names)
    assert [line for line in lines if line.split()[:1] and line.split()[0] in names] == [
        f"{each} None" for each in names
    ]
