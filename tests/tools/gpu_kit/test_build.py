"""The kit for a machine with a GPU and without a network."""

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.embedded.copy_minilm import TEXT_FILES
from tools.gpu_kit import build
from tools.gpu_kit.build import GIVEN, KitError, requirements

pytestmark = pytest.mark.extended

FOLDER = Path(build.__file__).parent
SCRIPT = FOLDER / "gpu-check.sh"


def test_wheels_complete_the_given_packages() -> None:
    """Every direct dependency is carried or given, at the pinned version, and nothing of CUDA is carried."""
    carried = dict(each.split("==") for each in requirements("3.12"))
    constraints = "".join((build.ROOT / each / "constraints.txt").read_text() for each in ("docker", "tests"))
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", constraints, re.MULTILINE))
    pins = {name.lower().replace("_", "-"): version for name, version in pinned.items()}
    assert {"fastapi", "uvicorn", "ngh2", "orjson", "pysimdjson", "llguidance", "structlog", "pytest"} <= set(carried)
    assert not [name for name in carried if name in GIVEN or name.startswith(("cuda", "triton"))]
    assert {name for name in carried if name.startswith("nvidia")} == {"nvidia-ml-py"}
    assert {name: version for name, version in carried.items() if name != "pip" and pins[name] != version} == {}


def test_wheels_depend_on_the_python_of_the_machine() -> None:
    assert any(each.startswith("pysimdjson") for each in requirements("3.13"))
    assert not any(each.startswith("pysimdjson") for each in requirements("3.14"))


@pytest.mark.extended
def test_kit_above_limit_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MAX_KIT_BYTES", 10_000)
    monkeypatch.setattr(build, "_download", lambda *_: None)
    with pytest.raises(KitError, match=r"expected at most 9\.8 KiB, got .*; largest: roundhouse\.tar\.gz"):
        build.build(tmp_path / "kit", "3.12", write_text_files(tmp_path))


def test_kit_holds_project_and_model_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_download", lambda *_: None)
    folder = tmp_path / "kit"
    for _ in range(2):  # an older kit is replaced
        assert build.build(folder, "3.12", write_text_files(tmp_path)) < build.MAX_KIT_BYTES
    listed = subprocess.run(["tar", "-tzf", folder / "roundhouse.tar.gz"], capture_output=True, text=True, check=True)
    needed = {"app/__main__.py", "app/web/manual", "docs/index.md", "pyproject.toml", "tests/conftest.py"}
    needed |= {"tools/bench/shared/table.py", "tools/gpu_kit/measure.py"}
    assert needed <= set(listed.stdout.splitlines())
    assert (folder / "minilm" / "tokenizer.json").is_file()
    assert (folder / "gpu-check.sh").stat().st_mode & 0o111


def test_foreign_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(KitError, match="is no kit"):
        build.build(tmp_path, "3.12")
    assert (tmp_path / "letter.txt").is_file()


@pytest.mark.extended
def test_missing_model_named(tmp_path: Path) -> None:
    with pytest.raises(KitError, match=r"config\.json: no such file; run `make models`"):
        build.build(tmp_path / "kit", "3.12", tmp_path)


def test_script_refuses_unknown_part() -> None:
    done = subprocess.run([SCRIPT, "speed"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.partition(" ")[0]) == (2, "usage:")
    assert "got speed" in done.stderr


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_kit_installs_and_runs_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of this test has the given packages, and more; the script runs with its Python version."""
    python = ".".join(platform.python_version_tuple()[:2])
    folder = tmp_path / "kit"
    build.build(folder, python)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PYTHON", sys.executable)
    command = [str(folder / "gpu-check.sh"), "--cpu", "tests", "memory"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = (folder / "results" / "results.md").read_text()
    assert " passed, 0 failed" in table
    assert "507 out_of_memory" in table


def write_text_files(folder: Path) -> Path:
    """Write a folder with the names of MiniLM's files."""
    for name in TEXT_FILES:
        (folder / "minilm" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "minilm" / name).write_text("{}")
    return folder / "minilm"
