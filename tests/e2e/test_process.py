"""The process: its start, its refusals to start, its end, and its imports."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from app.cli.commands import main
from tests.e2e.configs import DIGITS, onnx_entries
from tests.e2e.conftest import Start
from tests.e2e.load import slow_model, wait_for_drain, wait_for_inflight
from tests.e2e.server import MODELS, ROOT, WAIT_S, Fork, RunningServer, assert_refused, wait_until
from tests.support.models import onnx_graphs

QUESTION = {"input_data": [1, 2, 3, 4]}
LINUX = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="wants Linux's /proc")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m app …` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


@contextmanager
def asked(server: RunningServer, times: int = 1) -> Iterator[list[Future[httpx.Response]]]:
    """Send requests to the gated model; they are in flight when the block begins."""
    with ThreadPoolExecutor(times) as pool, httpx.Client(base_url=server.url, timeout=WAIT_S, verify=False) as client:
        answers = [pool.submit(client.post, "/models/slow/infer", json=QUESTION) for _ in range(times)]
        wait_for_inflight(server, times)
        yield answers


def test_sigterm_answers_requests_in_flight_only(start: Start, tmp_path: Path) -> None:
    entry, gate = slow_model(tmp_path)
    slow = start(entry, gated=True).wait_ready()
    with (
        gate.closed(),
        asked(slow, 2) as answers,
        httpx.Client(base_url=slow.url, timeout=WAIT_S, verify=False) as kept,
        socket.create_connection(("127.0.0.1", slow.port), timeout=WAIT_S) as half_sent,
    ):
        assert kept.get("/health/ready").status_code == 200
        # A request whose head arrived before the signal counts as in flight.
        body = json.dumps(QUESTION).encode()
        head = b"POST /models/slow/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        half_sent.sendall(head + body[:5])
        wait_until(lambda: slow.sample("roundhouse_inflight") == 3)
        slow.process.send_signal(signal.SIGTERM)
        wait_for_drain(slow)
        gate.open()
        for answer in answers:
            assert answer.result().status_code == 200
            assert answer.result().json()["output_data"] == [1, 2, 3, 4]
        with pytest.raises(httpx.TransportError):
            kept.get("/health/ready")
        half_sent.sendall(body[5:])
        assert half_sent.recv(100).startswith(b"HTTP/1.1 200 ")
    slow.wait_stopped(0)
    assert slow.log[-1]["event"] == "stopped"


def test_sighup_reads_again_and_ends_nothing(start: Start, tmp_path: Path) -> None:
    entry, gate = slow_model(tmp_path)
    server = start(entry, gated=True).wait_ready()
    with gate.closed(), asked(server) as (answer,):
        (tmp_path / "config.toml").write_text(entry + '[logging]\nlevel = "debug"\n', encoding="utf-8")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_log("logging.level changed", value="debug")
        assert not answer.done()
        gate.open()
        assert answer.result().status_code == 200
    assert server.events("SIGHUP: keys, certificates and logging.level are read again")


@LINUX
@pytest.mark.extended
def test_sighup_of_terminal_ends_no_process(start: Start, tmp_path: Path) -> None:
    """A terminal that is closed sends the signal to workers and engine processes too."""
    entry = onnx_entries(tmp_path, {"m": onnx_graphs.identity("float32", (2,))}) + 'isolation = "process"\n'
    server = start("[server]\nworkers = 2\n" + entry, is_fork=False).wait_ready()
    processes = [server.process.pid, *(each.pid for each in psutil.Process(server.process.pid).children(True))]
    assert len(processes) >= 5
    (tmp_path / "config.toml").write_text(
        '[logging]\nlevel = "debug"\n[server]\nworkers = 2\n' + entry, encoding="utf-8"
    )
    for pid in processes:
        os.kill(pid, signal.SIGHUP)
    server.wait_for_log("logging.level changed", value="debug")
    for _ in range(5):
        with httpx.Client(base_url=server.url, timeout=WAIT_S, verify=False) as client:
            assert client.post("/models/m/infer", json={"input_data": [1, 2]}).status_code == 200
    assert {each.pid for each in psutil.Process(server.process.pid).children(True)} == set(processes[1:])


# Python's own defaults would choose UTF-8 for this locale.
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def test_check_in_c_locale_names_any_path(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    path = tmp_path / "mod\u00e8le"
    config.write_text(f'[[models.onnx_models]]\nname = "m"\npath = "{path}"\n', encoding="utf-8")
    command = [sys.executable, "-m", "app", "check", str(config)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | C_LOCALE, capture_output=True, timeout=300, check=False)
    assert done.returncode == 2
    assert f"{path} (no such file or directory)" in done.stdout.decode()


@pytest.mark.extended
def test_serve_in_c_locale_loads_any_path(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "mod\u00e8le"
    folder.mkdir()
    entries = onnx_entries(folder, {"m": onnx_graphs.identity("float32", (2,))})
    server = start(entries, is_fork=False, **C_LOCALE).wait_ready()
    assert server.infer("m", input_data=[1, 2])["output_data"] == [1, 2]


@pytest.mark.extended
def test_sigint_stops_server(start: Start) -> None:
    server = start(DIGITS, is_fork=False)
    server.process.send_signal(signal.SIGINT)
    server.wait_stopped(0)


@pytest.mark.extended
def test_signal_before_start_ends_process(tmp_path: Path) -> None:
    """Nothing is served yet while a config is read; a FIFO without a writer holds the process there."""
    config = tmp_path / "config.toml"
    os.mkfifo(config)
    process = subprocess.Popen([sys.executable, "-m", "app", "serve", "--config", str(config)], cwd=ROOT)
    try:
        # The open for writing returns when the process has opened the FIFO for reading. It sleeps when it reads: only
        # then does a signal wake it.
        with config.open("wb"):
            wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()


def test_second_signal_ends_process_at_once(start: Start, tmp_path: Path) -> None:
    entry, gate = slow_model(tmp_path)
    server = start(entry, gated=True).wait_ready()
    with gate.closed(), asked(server) as (answer,):
        server.process.send_signal(signal.SIGTERM)
        wait_for_drain(server)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        # The gate is still closed: the end does not wait for the run.
        server.wait_stopped(128 + signal.SIGTERM)
        with pytest.raises(httpx.TransportError):
            answer.result()


@pytest.mark.extended
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("isolation", ["none", pytest.param("process", marks=pytest.mark.nightly)])
def test_signal_while_compiling_ends_server(start: Start, tmp_path: Path, number: int, isolation: str) -> None:
    """The code takes 10 seconds and more. The end is before it, and leaves no process and no part of a file."""
    code = tmp_path / "code"
    entry = '[[models.torch_models]]\nname = "m"\npath = "{}"\ndtype = "int8"\nisolation = "{}"\n'
    words = {"is_fork": False, "NUMBA_CACHE_DIR": str(code)}
    server = start(entry.format(MODELS / "tiny-llama", isolation), **words)
    server.wait_for_log("compiling kernels for this CPU")
    wait_until(lambda: any(code.glob("*/compiling.lock")))
    wait_until(lambda: [each["unit"] for each in server.client.get("/health").json()["progress"]][-1:] == ["kernels"])
    work = server.client.get("/models/m").json()["progress"]
    assert (work["kind"], work["what"]) == (
        ("compile", "kernels for this CPU") if isolation == "none" else ("load", "compile: kernels for this CPU")
    )
    assert (work["subject"], work["name"]) == ("model", "m")
    assert work["total"] > 1
    processes = psutil.Process(server.process.pid).children(recursive=True)
    assert any("frameworks.pytorch.compiling.process" in each.cmdline() for each in processes)
    server.process.send_signal(number)
    server.wait_stopped(0)
    assert server.events("stopped")
    assert not server.events("kernels compiled")
    psutil.wait_procs(processes, WAIT_S)
    assert not [each for each in processes if each.is_running()]
    assert not list(code.rglob(".*"))


@pytest.mark.extended
def test_drain_ends_at_deadline(start: Start, tmp_path: Path) -> None:
    deadline = "[server]\ndrain_timeout_s = 1\n"
    entry, gate = slow_model(tmp_path)
    server = start(entry + deadline, gated=True).wait_ready()
    with gate.closed(), asked(server) as (answer,):
        server.process.send_signal(signal.SIGTERM)
        # The gate is still closed: the deadline ends the request.
        refusal = answer.result()
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "draining")
    server.wait_stopped(0)


@pytest.mark.extended
def test_signal_during_load_stops_server(start: Start, tmp_path: Path) -> None:
    entry, gate = slow_model(tmp_path)
    with gate.closed():
        # The gate holds the trial run of the load.
        server = start(entry, gated=True)
        assert server.client.get("/health/ready").status_code == 503
        server.process.send_signal(signal.SIGTERM)
        wait_for_drain(server)
    server.wait_stopped(0)


def test_port_in_use_reported_in_one_line(server: RunningServer) -> None:
    ended = run("serve", str(MODELS / "digits"), "--port", str(server.port))
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"server.port: cannot listen on 127.0.0.1:{server.port} (")
    assert "--port" in line


@pytest.mark.extended
def test_unknown_host_reported_in_one_line() -> None:
    ended = run("serve", str(MODELS / "digits"), "--port", "0", "--host", "203.0.113.1")
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "203.0.113.1" in line


def test_invalid_config_reports_all_issues(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[server]\nprot = 1\nport = "x"\n\n[nonsense]\n', encoding="utf-8")
    ended = run("serve", "--config", str(file))
    assert ended.returncode == 2
    lines = ended.stderr.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [f"{file}:2", f"{file}:3", f"{file}:5"]
    assert 'did you mean "port"?' in lines[0]


def test_invalid_arguments_reported_before_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["serve", "--config", str(tmp_path / "missing.toml")]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["serve", str(tmp_path)]) == 2
    assert "a folder with model.onnx" in capsys.readouterr().err
    assert main(["serve", str(MODELS / "digits"), "--port", "65536"]) == 2
    assert "server.port" in capsys.readouterr().err
    monkeypatch.setenv("ROUNDHOUSE_SERVER__PROT", "1")
    assert main(["serve", str(MODELS / "digits")]) == 2
    assert "ROUNDHOUSE_SERVER__PROT" in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.extended)])
def test_failed_model_of_command_line_ends_server(workers: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    environ = {"ROUNDHOUSE_SERVER__WORKERS": workers}
    with RunningServer([str(broken), "--port", "0"], environ, tmp_path, Fork(needs_torch=False)) as server:
        server.wait_stopped(1)
    header, reason = [line for line in server.lines if not line.startswith("{")]
    assert header.startswith("no model could be loaded")
    assert reason.startswith(f'model "broken": {broken}: ')


@pytest.mark.extended
def test_failed_model_beside_good_one_is_served_around(tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no graph")
    paths = [str(tmp_path / "broken.onnx"), str(MODELS / "digits")]
    with RunningServer([*paths, "--port", "0"], cwd=tmp_path, fork=Fork(needs_torch=False)) as server:
        assert server.wait_for_log("started", failed=["broken"])["examples"][1:]
        assert server.client.get("/health").json()["status"] == "degraded"


@pytest.mark.extended
def test_folder_of_models_serves_each(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    onnx_entries(tmp_path, {"one": onnx_graphs.identity(), "two/1": onnx_graphs.identity()})
    (tmp_path / "none").mkdir()
    with RunningServer([str(tmp_path), "--port", "0"], cwd=tmp_path, fork=Fork(needs_torch=False)) as server:
        for model in ("one", "two"):
            assert server.wait_ready().infer(model, input_data=[1, 2, 3, 4])["output_data"] == [1, 2, 3, 4]
        server.wait_for_log("command line", reason=f"{tmp_path}: folders without a model are skipped: none")


def test_model_paths_need_no_config(tmp_path: Path) -> None:
    onnx_entries(tmp_path, {"a name with blanks": onnx_graphs.add()})
    onnx_graphs.save(onnx_graphs.identity(), tmp_path / "single.onnx")
    paths = [str(tmp_path / "a name with blanks"), str(tmp_path / "single.onnx"), str(MODELS / "digits" / "model.onnx")]
    with RunningServer([*paths, "--port", "0", "--host", "localhost"], cwd=tmp_path) as server:
        server.wait_ready()
        assert server.client.get("/health").json()["models"].keys() == {"a-name-with-blanks", "single", "digits"}
        assert server.infer("single", input_data=[1, 2])["output_data"] == [1, 2]


@pytest.mark.extended
@LINUX
def test_path_without_utf8_is_described(tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/odd\xff.onnx")
    shutil.copy(MODELS / "digits" / "model.onnx", odd)
    with RunningServer([odd, str(MODELS / "digits"), "--port", "0"]) as server:
        server.wait_for_log("model failed to load", model="odd")
        wait_until(lambda: server.client.get("/models/digits").json()["state"] == "ready")
        detail = server.client.get("/models/odd").json()
        assert "odd?.onnx" in detail["reason"]
        assert detail["version_details"]["1"]["path"].endswith("odd?.onnx")
        answer = server.client.post("/models/odd/infer", json={"input_data": [1]})
        assert_refused(answer, 503, "model_failed", "odd?.onnx")
        assert server.infer("digits", input_data=[0] * 64)["output_shape"] == [1]


def test_environment_overrides_file_flags_override_both(start: Start) -> None:
    server = start(DIGITS + "[server]\nmax_body_bytes = 10\nport = 1\n", ROUNDHOUSE_SERVER__MAX_BODY_BYTES="50")
    assert_refused(server.post("/infer", b" " * 51), 413, "too_large", "50 bytes")
    assert server.post("/infer", b" " * 50).status_code == 400
    assert server.port != 1


@pytest.mark.extended
@LINUX
def test_deprecated_key_logs_warning_at_start(start: Start) -> None:
    entry = '[[models.torch_models]]\nname = "a"\npath = "./a"\nload = "lazy"\nkv_cache = "1MiB"\n'
    server = start(entry)
    (warning,) = server.events("deprecated key")
    assert (warning["level"], warning["key"]) == ("warning", "models.torch_models[0].kv_cache")
    assert warning["place"].endswith("config.toml:5")
    assert warning["reason"] == "deprecated key; rename it to kv_cache_bytes"


def test_onnx_server_never_maps_torch(start: Start) -> None:
    entries = DIGITS + f'[[models.onnx_models]]\nname = "minilm-onnx"\npath = "{MODELS / "minilm-onnx"}"\n'
    server = start(entries, is_fork=False).wait_ready()
    assert len(server.infer("minilm-onnx", text=["a", "b"])["embeddings"]) == 2
    assert server.infer("digits", input_data=[0] * 64)["output_shape"] == [1]
    for path in ("/models", "/metrics", "/health", "/docs", "/openapi.json"):
        assert server.client.get(path).status_code == 200
    mapped = Path(f"/proc/{server.process.pid}/maps").read_text(encoding="utf-8")
    assert "onnxruntime" in mapped
    assert not [name for name in ("torch", "/transformers", "/sklearn/", "/scipy/") if name in mapped]


def test_loading_server_refuses_with_reason(start: Start, tmp_path: Path) -> None:
    entry, gate = slow_model(tmp_path)
    with gate.closed():
        # The gate holds the trial run of the load.
        server = start(entry, gated=True)
        answer = server.client.post("/models/slow/infer", json=QUESTION)
        assert_refused(answer, 503, "loading", 'model "slow" is ', "GET /health/ready")
        assert int(answer.headers["retry-after"]) >= 1
        ready = server.client.get("/health/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "starting", "waits_for": ["slow"]})
        health = server.client.get("/health").json()
        assert health["status"] == "starting"
        assert health["models"]["slow"] in ("registered", "loading")
        assert server.client.get("/health/live").status_code == 200
    server.wait_ready()
    assert server.client.get("/health").json()["status"] == "healthy"


@pytest.mark.extended
@LINUX
def test_pytorch_server_never_maps_onnxruntime(start: Start) -> None:
    entry = f'[[models.torch_models]]\nname = "minilm"\npath = "{MODELS / "minilm"}"\n'
    server = start(entry, is_fork=False).wait_ready()
    mapped = Path(f"/proc/{server.process.pid}/maps").read_text(encoding="utf-8")
    assert "libtorch" in mapped
    assert "onnxruntime" not in mapped


def test_onnx_server_imports_no_unused_package() -> None:
    """By the import system's own word, the modules written in Python included."""
    code = (
        "import asyncio, httpx, pathlib, sys; from app.config import load_settings; from app.server.build import build;"
        "from app.cli.model_paths import with_models; from dataclasses import replace;"
        "loaded = load_settings(None, {}); "
        "loaded = replace(loaded, settings=with_models(loaded.settings, [sys.argv[1]])); "
        "from frameworks.onnx.registry import OnnxRegistry; build(loaded, 'none').app._admin._app.built()"
    )
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code, str(MODELS / "digits")],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in ended.stderr.splitlines()}
    assert {"onnxruntime", "fastapi", "simdjson"} <= imported
    assert not imported & {"torch", "transformers", "sklearn", "scipy", "pandas", "matplotlib", "onnx", "safetensors"}


@pytest.mark.extended
def test_closed_log_pipe_breaks_no_request(tmp_path: Path) -> None:
    """The reader of the log goes away: lines are lost, answers are not."""
    config = tmp_path / "config.toml"
    config.write_text(DIGITS + '[logging]\nrequests = "all"\nlevel = "debug"\n', encoding="utf-8")
    port = free_port()
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "serve", "--config", str(config), "--port", str(port)], cwd=ROOT, stderr=write
    )
    os.close(write)
    os.close(read)
    answers_without_log(process, port)


@pytest.mark.extended
def test_server_without_stderr_answers(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(DIGITS + '[logging]\nrequests = "all"\n', encoding="utf-8")
    port = free_port()
    command = f'exec "{sys.executable}" -m app serve --config "{config}" --port {port} 2>&-'
    answers_without_log(subprocess.Popen(["/bin/sh", "-c", command], cwd=ROOT), port)


def answers_without_log(process: subprocess.Popen[bytes], port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S, verify=False) as client:
        try:
            wait_until(lambda: is_ready(client))
            for _ in range(5):
                assert client.post("/models/digits/infer", json={"input_data": [0] * 64}).status_code == 200
                assert client.post("/models/digits/infer", json={"input_data": [1]}).status_code == 400
                assert client.get("/nothing").status_code == 404
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
            process.wait()


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
