"""Model types whose processors need torchvision are served where it is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.models.vision.catalogue import NEEDS_TORCHVISION

ROOT = Path(__file__).resolve().parents[5]
FOLDER = ROOT / "build" / "torchvision"
VERSION = "0.28.0"


@pytest.mark.extended
def test_texts_with_torchvision_equal_generate() -> None:
    if not (FOLDER / "torchvision").exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER)]
        installed = subprocess.run(
            [*pip, f"torchvision=={VERSION}"], check=False, capture_output=True, text=True, timeout=600
        )
        assert installed.returncode == 0, installed.stderr
    names = sorted(NEEDS_TORCHVISION)
    run = subprocess.run(
        [sys.executable, "-m", "tests.frameworks.pytorch.generation.vision.with_torchvision", *names],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{FOLDER}{os.pathsep}{ROOT}"},
        check=False,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    served = [line.split()[0] for line in run.stdout.splitlines() if line.split() and line.split()[0] in names]
    assert served == names
