"""The JavaScript clients, by the test runner of Node.js. Skipped without node and npm."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
INSTALL_WITHIN_S = 300
RUN_WITHIN_S = 120


@pytest.fixture(scope="module")
def packages() -> Path:
    """Return the folder of the packages, which lies in the environment of the group."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = Path(sys.prefix) / "node"
    own, installed = FOLDER / "package.json", folder / "installed.json"
    if not installed.is_file() or installed.read_bytes() != own.read_bytes():
        folder.mkdir(exist_ok=True)
        shutil.copy(own, folder)
        words = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--ignore-scripts"]
        subprocess.run(words, cwd=folder, check=True, timeout=INSTALL_WITHIN_S)
        shutil.copy(own, installed)
    return folder / "node_modules"


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.cjs")), ids=lambda each: each.stem)
def test_client(packages: Path, script: Path) -> None:
    environ = os.environ | {"NODE_PATH": str(packages)}
    words = ["node", "--test", "--test-reporter=spec", str(script)]
    run = subprocess.run(words, env=environ, timeout=RUN_WITHIN_S, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
