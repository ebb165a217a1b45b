"""Modes of authentication: a server beyond loopback needs a key."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from app.auth.key_file import editing
from app.auth.keys import create_key
from app.auth.principal import Scope
from app.config import AuthSettings, ConfigError, LoadedSettings, Settings, TenantSettings
from app.config.loading import ServerSettings
from app.server.keys import is_loopback, key_issues, open_keys

KEY = "a-key-of-the-environment"


def settings_of(folder: Path, host: str, **auth: Any) -> LoadedSettings:
    return LoadedSettings(Settings(server=ServerSettings(host=host), auth=AuthSettings(**auth)), folder)


def add_key(folder: Path, tenant: str) -> None:
    key, _ = create_key(tenant, frozenset({Scope.INFER}), 0.0)
    with editing(folder / "keys.toml") as keys:
        keys[key.key_id] = key


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_addresses_need_no_key(host: str, tmp_path: Path) -> None:
    assert is_loopback(host)
    assert not open_keys(settings_of(tmp_path, host), "").required
    assert open_keys(settings_of(tmp_path, host), KEY).required


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "no.such.host.invalid", "::ffff:192.0.2.1", "a" * 70])
def test_other_addresses_need_key(host: str, tmp_path: Path) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError) as refused:
        open_keys(settings_of(tmp_path, host), "")
    message = str(refused.value)
    assert f'auth: expected a key, as server.host "{host}" is not loopback, got none; run `roundhouse keys' in message
    assert "or `roundhouse serve --host 127.0.0.1`" in message
    assert "\n" not in message
    assert open_keys(settings_of(tmp_path, host), KEY).required
    assert not open_keys(settings_of(tmp_path, host, mode="off"), "").required


def test_named_command_creates_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from app.cli.commands import main

    folder = tmp_path / "a folder's name"
    folder.mkdir()
    loaded = settings_of(folder, "0.0.0.0")
    (issue,) = key_issues(loaded, "")
    program, *words = shlex.split(issue.message.split("`")[1])
    assert program == "roundhouse"
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("rh_")
    assert len(open_keys(loaded, "")) == 1


def test_required_without_key_refused_on_loopback(tmp_path: Path) -> None:
    loaded = settings_of(tmp_path, "127.0.0.1", mode="required")
    with pytest.raises(ConfigError, match=r'as auth\.mode is "required", got none; run `roundhouse keys create'):
        open_keys(loaded, "")
    add_key(tmp_path, "search")
    assert open_keys(loaded, "").required


def test_keys_of_other_tenants_do_not_count(tmp_path: Path) -> None:
    add_key(tmp_path, "unknown")
    loaded = settings_of(tmp_path, "0.0.0.0", tenants=(TenantSettings(name="search"),))
    with pytest.raises(
        ConfigError, match=r"got none for the tenants of auth\.tenants \(1 of others\); .*--tenant search"
    ):
        open_keys(loaded, "")


def test_mode_off_warns_beyond_loopback(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text("[[")
    (issue,) = key_issues(settings_of(tmp_path, "0.0.0.0", mode="off"), "")
    assert not issue.is_error
    assert str(issue).startswith('auth.mode: every caller has all scopes at server.host "0.0.0.0"; remove')
    assert not key_issues(settings_of(tmp_path, "127.0.0.1", mode="off"), "")


def test_unusable_keys_are_reported(tmp_path: Path) -> None:
    (issue,) = key_issues(settings_of(tmp_path, "127.0.0.1"), "short")
    assert str(issue).startswith("ROUNDHOUSE_API_KEY: expected 16 to 512 visible ASCII characters, got 5 characters")
    (tmp_path / "keys.toml").write_text("[[")
    (issue,) = key_issues(settings_of(tmp_path, "127.0.0.1"), "")
    assert str(issue).startswith(f"auth.keys_file: {tmp_path}/keys.toml: invalid TOML from keys[0] on")


def test_file_that_others_read_is_reported(tmp_path: Path) -> None:
    add_key(tmp_path, "search")
    loaded = settings_of(tmp_path, "0.0.0.0")
    assert not key_issues(loaded, "")
    (tmp_path / "keys.toml").chmod(0o640)
    (issue,) = key_issues(loaded, "")
    assert not issue.is_error
    assert str(issue) == f"auth.keys_file: expected mode 0600, got 0640; run `chmod 600 {tmp_path}/keys.toml`"
    assert open_keys(loaded, "").required
