"""The options of `roundhouse run --ray`, without a cluster."""

import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.commands import main
from tests.e2e.server import MODELS, ROOT


def run(folder: Path, *more: str) -> int:
    source = folder / "in.jsonl"
    source.write_text('{"pixels": [0]}\n')
    return main(["run", str(MODELS / "digits"), str(source), str(folder / "out.jsonl"), "--columns", "pixels", *more])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--ray", "--url", "http://127.0.0.1:1"], "--ray: expected no --url"),
        (["--workers", "2"], "--workers: expected --ray"),
        (["--ray", "auto", "--worker-cpus", "0"], "--worker-cpus: expected 1 or more, got 0"),
        (["--ray", "ray://127.0.0.1:10001"], "--ray: expected HOST:PORT or auto"),
    ],
)
def test_wrong_ray_option_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert run(tmp_path, *more) == 2
    assert message in capsys.readouterr().err


def test_unreachable_cluster_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--ray", "127.0.0.1:9") == 1
    assert capsys.readouterr().err.count("--ray: expected a Ray cluster at 127.0.0.1:9, got no connection") == 1


def test_installation_without_deployments_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from extensions.offline.ray import cluster

    monkeypatch.setattr(cluster, "extensions", lambda: ())
    assert run(tmp_path, "--ray", "127.0.0.1:9") == 2
    assert "--ray: expected an installation with extensions/ray, got none" in capsys.readouterr().err


def test_absent_ray_names_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == "ray" or name.startswith(("ray.", "extensions.offline.ray"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run(tmp_path, "--ray") == 1
    assert "--ray: expected the extra ray, got none; make install EXTRAS=ray" in capsys.readouterr().err


def test_run_without_ray_imports_none() -> None:
    modules = ", ".join(f"extensions.offline.{name}" for name in ("options", "job", "local_model"))
    code = f"import {modules}, sys; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
