"""`roundhouse serve org/name` and `roundhouse run org/name`: downloads of the command line."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.hubs import DATA, TOKEN, environment, files, hold, let_go, resumed_at, token_hub
from tests.e2e.server import MODELS, ROOT, WAIT_S, RunningServer, wait_until
from tests.support.alike import check_alike
from tests.support.hub import Hub

NUMBERS = [1.0, 2.0, 3.0]


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with the models `org/small` and `org/digits`."""
    with token_hub() as running:
        running.publish("org/small", files())
        running.publish_folder("org/digits", MODELS / "digits")
        yield running


def start(hub: Hub, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command without a terminal."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    return subprocess.Popen(
        [sys.executable, "-m", "app", *words],
        cwd=ROOT,
        env=own | environment(hub, folder) | {"ROUNDHOUSE_SERVER__GRPC_PORT": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(hub: Hub, folder: Path, *words: str, status: int = 0) -> str:
    """Run a command to its end; return its standard error."""
    process = start(hub, folder, *words)
    printed, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == status, errors
    assert TOKEN not in printed + errors
    return errors


def wait_held(folder: Path) -> None:
    """Wait until a part of the large file is on the disk."""
    cache = folder / "cache"
    wait_until(lambda: any(part.stat().st_size for part in cache.rglob("model.onnx_data.part")))


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.extended), 2])
def test_serve_fetches_repository_by_name(workers: int, hub: Hub, tmp_path: Path) -> None:
    variables = environment(hub, tmp_path) | {"ROUNDHOUSE_SERVER__WORKERS": str(workers)}
    words = ["org/small", "hf://org/digits@main", "--port", "0"]
    with RunningServer(words, variables) as server:
        server.wait_ready()
        for name in ("org/small", "small"):
            answered = server.infer(name, input_data=NUMBERS)
            assert (answered["model_name"], answered["output_data"]) == (name, NUMBERS)
        assert server.infer("digits", input_data=[0.0] * 64)["output_shape"] == [1]
        assert [line for line in server.lines if line.startswith("hf://org/small: downloaded 3 MiB in")]
        (detail,) = server.client.get("/models/digits").json()["version_details"].values()
        assert detail["path"] == "hf://org/digits@main"
    # The server found the files of the command in the cache.
    assert len(hub.downloads()) == len(set(hub.downloads()))
    output = "".join(server.lines)
    assert TOKEN not in output
    assert "Fatal" not in output


@pytest.mark.extended
def test_serve_says_why_a_model_is_absent(hub: Hub, tmp_path: Path) -> None:
    errors = run(hub, tmp_path, "serve", "org/absent", "--port", "0", status=1)
    assert "hf://org/absent: expected a model of the hub, got no such model or revision" in errors
    hub.publish("org/pickle", {"config.json": b"{}", "pytorch_model.bin": b"pickle"})
    errors = run(hub, tmp_path, "serve", "org/pickle", "--port", "0", status=1)
    assert "got pytorch_model.bin" in errors
    assert "Traceback" not in errors


@pytest.mark.extended
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_signal_ends_download_of_serve(number: signal.Signals, status: int, hub: Hub, tmp_path: Path) -> None:
    hold(hub)
    process = start(hub, tmp_path, "serve", "org/small", "--port", "0")
    wait_held(tmp_path)
    process.send_signal(number)
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == status
    assert errors == ("interrupted; run the same command again to resume\n" if status == 130 else "")
    let_go(hub)
    with RunningServer(["org/small", "--port", "0"], environment(hub, tmp_path)) as server:
        assert server.wait_ready().infer("small", input_data=NUMBERS)["output_data"] == NUMBERS
    assert 0 < resumed_at(hub) < len(DATA)


@pytest.mark.extended
def test_killed_command_leaves_no_process(hub: Hub, tmp_path: Path) -> None:
    hold(hub)
    process = start(hub, tmp_path, "serve", "org/small", "--port", "0")
    wait_held(tmp_path)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 1
    process.kill()
    process.communicate(timeout=WAIT_S)
    assert psutil.wait_procs(children, WAIT_S)[1] == []


@pytest.mark.extended
def test_run_fetches_repository_by_name(hub: Hub, tmp_path: Path) -> None:
    source, results = tmp_path / "images.jsonl", tmp_path / "results.jsonl"
    source.write_text("".join(json.dumps({"image": [float(row)] * 64}) + "\n" for row in range(3)))
    words = ("run", "org/digits", str(source), str(results), "--columns", "image")
    assert "hf://org/digits: downloaded" in run(hub, tmp_path, *words)
    local = tmp_path / "local.jsonl"
    run(hub, tmp_path, "run", str(MODELS / "digits"), *words[2:3], str(local), *words[4:])
    expected = [json.loads(line) for line in local.read_text().splitlines()]
    check_alike([json.loads(line) for line in results.read_text().splitlines()], expected)
    # Without the hub, and by a name of a config file.
    hub.web.faults.is_offline = True
    file = tmp_path / "config.toml"
    file.write_text('[[models.onnx_models]]\nname = "numbers"\npath = "hf://org/digits"\n')
    again = tmp_path / "again.jsonl"
    errors = run(hub, tmp_path, "run", "numbers", *words[2:3], str(again), *words[4:], "--config", str(file))
    assert "downloaded" not in errors
    check_alike([json.loads(line) for line in again.read_text().splitlines()], expected)


def test_check_names_missing_extra(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['huggingface_hub'] = None; from app.cli import main; "
        f"sys.exit(main(['check', {str(tmp_path / 'config.toml')!r}]))"
    )
    (tmp_path / "models").mkdir()
    (tmp_path / "config.toml").write_text('[[models.onnx_models]]\nname = "m"\npath = "hf://org/name"\n')
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "models.onnx_models[0].path: expected the extra hub, got none; make install EXTRAS=hub" in done.stdout
