"""The distribution: its name in all texts, and a wheel that serves in an environment of its own."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from typing import NamedTuple

import pytest

from frameworks.core import extras
from frameworks.core.extras import DISTRIBUTION, install_command
from tests.e2e.server import ROOT, RunningServer
from tests.manual.pages import ANY, examples
from tests.manual.test_examples import check_agrees, read_elided
from tests.support.models import onnx_graphs

TEXTS = (".md", ".py", ".toml", ".sh", ".yaml", ".yml", ".txt", ".json")
# The command installs the distribution, an extra of it or another name.
_INSTALLED = re.compile(r"pip3? install\b[^`\n]*?[\s'\"]([\w-]*roundhouse[\w-]*)(?=[\s'\"\[`]|$)")
FIRST_HOUR_WITHIN_S = 90.0
INDEX_OPTIONS = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")


def texts() -> list[Path]:
    """Return the tracked files that hold text or code."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if name.endswith(TEXTS) or name == "Makefile"]
    return [ROOT / name for name in names if ROOT / name != Path(__file__)]


def test_no_text_installs_another_distribution() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    assert declared == DISTRIBUTION
    found = {
        (path.relative_to(ROOT), name)
        for path in texts()
        if path.is_file()
        for name in _INSTALLED.findall(path.read_text(encoding="utf-8"))
    }
    assert {path for path, name in found if name != DISTRIBUTION} == set()
    assert len(found) > 4


@pytest.mark.parametrize("name", ["'roundhouse[otel]'", "roundhouse", '"roundhouse"'])
def test_another_distribution_is_found(name: str) -> None:
    assert _INSTALLED.findall(f"pip install {name}") == ["roundhouse"]


def test_install_command_is_that_of_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_command("otel") == "make install EXTRAS=otel"
    monkeypatch.setattr(extras, "_MAKEFILE", tmp_path / "Makefile")
    assert install_command("otel") == "pip install 'roundhouse-server[otel]'"


def run(command: list[str], environ: dict[str, str] | None = None, folder: Path | None = None) -> str:
    """Run a program, which must succeed; return what it prints."""
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path) -> Path:
    """Create an environment that has the dependencies of this one, and not this project; return its programs."""
    venv.create(folder, with_pip=True)
    # Python 3.11 puts one of its own there, which hides the other.
    run([str(folder / "bin" / "pip"), "uninstall", "--quiet", "--yes", "setuptools"])
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    # The .pth files there are not read: the editable install of this project stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "bin"


def tagged(folder: Path, tag: str) -> None:
    """Make a repository of a folder, with one commit and a tag."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "--quiet"], ["add", "pyproject.toml"], ["commit", "--quiet", "-m", "a"], ["tag", tag]):
        run([*git, *words], folder=folder)


class Installation(NamedTuple):
    """`programs`: the folder of an environment with the wheel. `environ`: the variables of its commands."""

    programs: Path
    environ: dict[str, str]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Build a wheel, and install it in a new environment."""
    folder = tmp_path_factory.mktemp("wheel")
    source, wheels = folder / "source", folder / "dist"
    source.mkdir()
    for name in ("app", "extensions", "frameworks", "memory"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", source / "docs")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    tagged(source, "v1.2.3")
    run([sys.executable, "-m", "pip", "wheel", *INDEX_OPTIONS, "--wheel-dir", str(wheels), str(source)])
    [wheel] = wheels.iterdir()
    assert wheel.name.startswith("roundhouse_server-1.2.3-")
    programs = environment(folder / "environment")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ["PATH"] = f"{programs}{os.pathsep}{environ['PATH']}"
    run([str(programs / "pip"), "install", "--no-index", "--quiet", f"{wheel}[cpu]"], environ)
    return Installation(programs, environ)


@pytest.mark.extended
def test_wheel_serves_in_its_own_environment(tmp_path: Path, installed: Installation) -> None:
    programs, environ = installed
    assert run([str(programs / "roundhouse"), "--version"], environ, tmp_path) == "roundhouse 1.2.3\n"
    code = "import app, extensions, memory; print(app.__file__, extensions.__file__, memory.__file__)"
    found = run([str(programs / "python"), "-c", code], environ, tmp_path).split()
    assert all(Path(each).is_relative_to(programs.parent) for each in found)
    graph = onnx_graphs.save(onnx_graphs.add(), tmp_path / "sums.onnx")
    arguments = [str(graph), "--port", "0"]
    with RunningServer(arguments, cwd=tmp_path, program=[str(programs / "roundhouse")]) as server:
        server.wait_ready()
        [model] = server.client.get("/models").json()["models"]
        answer = server.infer(model["name"], inputs={"a": [[1, 2, 3, 4]], "b": [[1, 1, 1, 1]]})
        assert answer["outputs"]["sum"]["data"] == [[2, 3, 4, 5]]
        page = server.client.get("/", headers={"accept": "text/html"})
        assert page.status_code == 200
        assert "text/html" in page.headers["content-type"]
        base = page.text.split('<script type="module" src="')[1].partition("/main.js")[0]
        for each in (ROOT / "docs").glob("*.md"):
            assert server.client.get(f"/{base}/manual/{each.name}").text == each.read_text(encoding="utf-8")
    assert list(programs.parent.rglob("page-overview.png")) == []
    assert [each.name for each in tmp_path.iterdir()] == ["sums.onnx"]


@pytest.mark.extended
def test_first_hour_has_the_answers_of_manual(tmp_path: Path, installed: Installation) -> None:
    shutil.copy(ROOT / "config.toml", tmp_path)
    (tmp_path / "models").symlink_to(ROOT / "models")
    requests = [example for example in examples("sh", "json") if example.name.startswith("getting-started-")]
    commands = session((ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8"))
    assert len(requests) + len(commands) >= 10
    before_s = cpu_seconds()
    arguments = ["--config", "config.toml", "--port", "0"]
    with RunningServer(arguments, cwd=tmp_path, program=[str(installed.programs / "roundhouse")]) as server:
        server.wait_ready()

        def shell(line: str) -> str:
            line = line.replace("http://127.0.0.1:8080", server.url).replace(".venv/bin/", "")
            return run(["sh", "-ec", line], installed.environ, tmp_path)

        for example in requests:
            check_agrees(json.loads(shell(example.code)), read_elided(example.output))
        for command, output in commands:
            expected = re.escape(output.strip()).replace(ANY, ".+")
            printed = shell(command)
            assert re.fullmatch(expected, printed.strip(), flags=re.DOTALL), (command, printed)
    # CPU time: other work of the machine does not count.
    assert cpu_seconds() - before_s < FIRST_HOUR_WITHIN_S


def session(page: str) -> list[tuple[str, str]]:
    """Return the commands of `roundhouse` in the console blocks of a page that have an output, with it."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL):
        for command, output in re.findall(r"^\$ (roundhouse .*)\n((?:(?!\$ ).*\n)*)", block, flags=re.MULTILINE):
            if output:
                found.append((command, output))
    return found


def cpu_seconds() -> float:
    """Return the CPU time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
