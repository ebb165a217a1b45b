"""`roundhouse keys`, and servers that read the keys file while they run."""

import io
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from app.cli.commands import main
from tests.e2e.configs import DIGITS
from tests.e2e.forks import fork_server
from tests.e2e.server import ROOT, WAIT_S, RunningServer, serving, wait_until

ENVIRONMENT_KEY = "a-key-of-the-environment"
Run = Callable[..., "subprocess.CompletedProcess[str]"]
DIGIT = "[" + ",".join(["8"] * 64) + "]"


def run(*words: str, cwd: Path, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `roundhouse …` in a process of its own."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    return subprocess.run(
        [sys.executable, "-m", "app", *words],
        cwd=cwd,
        env=own | {"PYTHONPATH": str(ROOT)} | (environ or {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run_here(*words: str, cwd: Path, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `roundhouse …` in this process, which has imported its modules."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(stdout), redirect_stderr(stderr):
        patch.chdir(cwd)
        for name in [name for name in os.environ if name.startswith("ROUNDHOUSE_")]:
            patch.delenv(name)
        for name, value in (environ or {}).items():
            patch.setenv(name, value)
        status = main(words)
    return subprocess.CompletedProcess(words, status, stdout.getvalue(), stderr.getvalue())


def start(cwd: Path, *words: str, **environ: str) -> tuple[int, str]:
    """Start a server that must end by itself; return its exit status and what it wrote."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("ROUNDHOUSE_")}
    process, stderr = fork_server(words, own | environ, cwd, False, False)
    with stderr:
        text = stderr.read().decode()
    return process.wait(WAIT_S), text


def created(folder: Path, *words: str, run: Run = run_here) -> str:
    """Return the text of a new key in the folder's keys.toml."""
    done = run("keys", "create", "--tenant", "search", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"rh_[a-z0-9]{12}_[\w-]{43}\n", done.stdout)
    assert "the key is shown only now" in done.stderr
    return done.stdout.strip()


def listed(folder: Path) -> list[dict[str, Any]]:
    done = run_here("keys", "list", "--json", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_keys_are_created_rotated_and_revoked(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    text = created(
        tmp_path,
        *("--scopes", "infer,read", "--models", "minilm*", "digits", "--collections", "docs*"),
        *("--expires", "90d", "--signed"),
        run=run,
    )
    key_id = text[3:15]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert text[16:] not in file.read_text()
    (key,) = listed(tmp_path)
    shown = [key[name] for name in ("id", "tenant", "scopes", "models", "signed", "state")]
    assert shown == [key_id, "search", ["infer", "read"], ["minilm*", "digits"], True, "valid, signed"]

    rotated = run_here("keys", "rotate", key_id, "--overlap", "1h", cwd=tmp_path)
    new_id = rotated.stdout[3:15]
    assert rotated.returncode == 0
    assert [key["state"] for key in listed(tmp_path)] == [f"replaced by {new_id}", "valid, signed"]
    assert [key["collections"] for key in listed(tmp_path)] == [["docs*"]] * 2
    table = run_here("keys", "list", cwd=tmp_path).stdout.splitlines()
    assert table[0].split() == ["ID", "TENANT", "SCOPES", "MODELS", "COLLECTIONS", "CREATED", "EXPIRES", "STATE"]
    assert table[1].split()[:5] == [key_id, "search", "infer,read", "minilm*,digits", "docs*"]

    assert run_here("keys", "revoke", key_id, new_id, cwd=tmp_path).returncode == 0
    assert listed(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["revoke", "000000000000"], 1, 'ID: expected a key of {}, got "000000000000"; see `roundhouse keys list`'),
        (["rotate", "000000000000"], 1, 'ID: expected a key of {}, got "000000000000"; see `roundhouse keys list`'),
        (["list", "--config", "none.toml"], 2, "none.toml: no such file; correct the path"),
        (["create", "--tenant", "a b", "--scopes", "read"], 1, "--tenant: expected 1 to 64 letters"),
        (["create", "--tenant", "a", "--scopes", "reed"], 2, "expected some of infer,read,write,manage, got 'reed'"),
        (["create", "--tenant", "a", "--scopes", ""], 2, "expected some of infer,read,write,manage, got ''"),
        (["create", "--tenant", "a", "--scopes", "read", "--expires", "9y"], 2, "expected a time like 90d"),
        (["create", "--tenant", "a", "--scopes", "read", "--models", ""], 2, "expected 1 to 256 characters, got 0"),
        (["create", "--tenant", "a", "--scopes", "read", "--file", "no/where.toml"], 1, "create the folder"),
    ],
)
def test_invalid_command_is_explained(
    words: list[str],
    status: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        assert main(["keys", *words]) == status
    except SystemExit as ended:
        assert ended.code == status  # noqa: PT017 - argparse ends the process for some
    assert message.format(tmp_path / "keys.toml") in capsys.readouterr().err
    assert not (tmp_path / "keys.toml").exists()


def test_expired_and_replaced_keys_are_not_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    create = ["keys", "create", "--tenant", "search", "--scopes", "read"]
    assert main([*create, "--expires", "0s"]) == 0
    expired = capsys.readouterr().out[3:15]
    assert main(["keys", "rotate", expired]) == 1
    assert "which has expired; create a new key" in capsys.readouterr().err
    assert main(create) == 0
    replaced = capsys.readouterr().out[3:15]
    assert main(["keys", "rotate", replaced]) == 0
    new = capsys.readouterr().out[3:15]
    assert main(["keys", "rotate", replaced]) == 1
    assert f"rotate {new}, which replaced it" in capsys.readouterr().err


def test_config_names_keys_file_and_tenants(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    config = '[auth]\nkeys_file = "./secrets/k.toml"\n[[auth.tenants]]\nname = "search"\n'
    (tmp_path / "server.toml").write_text(config)
    create = ("keys", "create", "--scopes", "read", "--config", str(tmp_path / "server.toml"), "--tenant")
    assert run_here(*create, "search", cwd=ROOT).returncode == 0
    assert (tmp_path / "secrets/k.toml").exists()
    refused = run_here(*create, "other", cwd=ROOT)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == '--tenant: expected one of search, got "other"; add it to auth.tenants\n'


def test_server_beyond_loopback_refuses_to_start(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(DIGITS)
    code, text = start(tmp_path, "--host", "0.0.0.0", "--port", "0", "--grpc-port", "0")
    assert code == 2
    assert text.splitlines()[-1].startswith('auth: expected a key, as server.host "0.0.0.0" is not loopback')
    assert "roundhouse keys create" in text
    assert "Traceback" not in text
    assert start(tmp_path, "--port", "0", ROUNDHOUSE_AUTH__MODE="required")[0] == 2
    (tmp_path / "keys.toml").write_text("[[keys]]\n")
    code, text = start(tmp_path, "--port", "0")
    assert code == 2
    assert "keys[0].id: expected a value, got none" in text


def test_check_reports_missing_key(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[server]\nhost = "0.0.0.0"\n')
    checked = run_here("check", "c.toml", cwd=tmp_path)
    assert checked.returncode == 2
    assert "is not loopback, got none; run `roundhouse keys create" in checked.stdout
    with_key = run_here("check", "c.toml", cwd=tmp_path, environ={"ROUNDHOUSE_API_KEY": ENVIRONMENT_KEY})
    assert (with_key.returncode, with_key.stdout) == (0, "c.toml: no issues\n")
    without = run_here("check", "c.toml", cwd=tmp_path, environ={"ROUNDHOUSE_AUTH__MODE": "off"})
    assert without.returncode == 0
    assert "every caller has all scopes" in without.stdout


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[RunningServer]:
    """A server with the key of the environment."""
    with serving(tmp_path, DIGITS, {"ROUNDHOUSE_API_KEY": ENVIRONMENT_KEY}) as server:
        yield server.wait_ready()


def status(server: RunningServer, key: str, path: str = "/models") -> int:
    return server.client.get(path, headers={"authorization": f"Bearer {key}"} if key else {}).status_code


def test_server_reads_changes_of_keys_file(keyed: RunningServer, tmp_path: Path) -> None:
    assert status(keyed, "") == 401
    assert status(keyed, ENVIRONMENT_KEY) == 200
    key = created(tmp_path, "--scopes", "read")
    wait_until(lambda: status(keyed, key) == 200)
    file = tmp_path / "keys.toml"
    good = file.read_bytes()
    file.write_bytes(good[:-20])
    keyed.wait_for_log("keys file not loaded; the last good one stays valid")
    assert status(keyed, key) == 200
    keyed.client.headers["x-api-key"] = ENVIRONMENT_KEY
    assert keyed.sample("roundhouse_auth_key_reloads_total", outcome="failed") == 1
    assert keyed.sample("roundhouse_auth_keys") == 2
    file.write_bytes(good)
    assert run_here("keys", "revoke", key[3:15], cwd=tmp_path).returncode == 0
    wait_until(lambda: status(keyed, key) == 401)
    assert key[16:] not in "\n".join(keyed.lines)
    assert ENVIRONMENT_KEY not in "\n".join(keyed.lines)


@pytest.mark.extended
def test_first_key_of_loopback_server_is_required(tmp_path: Path) -> None:
    with serving(tmp_path, DIGITS) as server:
        server.wait_ready()
        assert status(server, "") == 200
        key = created(tmp_path, "--scopes", "read")
        wait_until(lambda: status(server, "") == 401)
        assert status(server, key) == 200


@pytest.mark.extended
def test_rotated_key_is_valid_during_overlap(keyed: RunningServer, tmp_path: Path) -> None:
    old = created(tmp_path, "--scopes", "read")
    new = run_here("keys", "rotate", old[3:15], cwd=tmp_path).stdout.strip()
    wait_until(lambda: status(keyed, new) == 200)
    assert status(keyed, old) == 200
    new = run_here("keys", "rotate", new[3:15], "--overlap", "0s", cwd=tmp_path).stdout.strip()
    wait_until(lambda: status(keyed, new) == 200)
    assert status(keyed, old) == 200


@pytest.mark.extended
def test_commands_send_key(keyed: RunningServer, tmp_path: Path) -> None:
    by_variable = {"ROUNDHOUSE_API_KEY": ENVIRONMENT_KEY}
    models = run("models", "--url", keyed.url, cwd=tmp_path, environ=by_variable)
    assert models.returncode == 0, models.stdout
    assert models.stdout.splitlines()[1].startswith("digits")
    infer = ("infer", "digits", "--data", DIGIT, "--url", keyed.url)
    done = run_here(*infer, "--api-key", ENVIRONMENT_KEY, cwd=tmp_path)
    assert json.loads(done.stdout)["output_data"] == [2]
    refused = run_here(*infer, "--json", "--api-key", ENVIRONMENT_KEY + "x", cwd=tmp_path, environ=by_variable)
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"]["code"] == "unauthenticated"


@pytest.mark.extended
def test_server_removes_key_from_environment(tmp_path: Path) -> None:
    code = """
import os, sys
from unittest.mock import patch
from app.cli.commands import main
with patch("app.server.process.serve", lambda loaded, options: print(options.api_key, os.environ.get(NAME))):
    main(["serve"])
"""
    words = [sys.executable, "-c", code.replace("NAME", '"ROUNDHOUSE_API_KEY"')]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "ROUNDHOUSE_API_KEY": ENVIRONMENT_KEY}
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == f"{ENVIRONMENT_KEY} None\n"
