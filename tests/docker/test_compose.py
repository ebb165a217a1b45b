"""compose.yaml: its services find each other and their files, profiles are complete, and the first start makes keys."""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from app.auth.key_file import read_keys
from app.auth.keys import split_key
from tests.docker.files import DOCKER, read_yaml
from tests.e2e.server import ROOT

SERVERS = {"cpu": "roundhouse-cpu", "gpu": "roundhouse-gpu"}
KEYS = {"cpu": "keys-cpu", "gpu": "keys-gpu"}
SERVICES: dict[str, dict[str, Any]] = read_yaml("compose.yaml")["services"]


def mounts(service: str) -> dict[str, str]:
    """Return the source of each mount point, with nothing set in the environment."""
    found = {}
    for volume in SERVICES[service]["volumes"]:
        source, target, *_ = nothing_set(volume).split(":")
        found[target] = source
    return found


def nothing_set(text: str) -> str:
    """Return the text with all variables unset."""
    while text != (text := re.sub(r"\$\{\w+:-([^${}]*)\}", r"\1", text)):
        pass
    return text


@pytest.mark.parametrize("service", SERVICES)
def test_mounted_file_of_service_exists(service: str) -> None:
    for source in mounts(service).values():
        is_file = source.startswith(".")
        assert (DOCKER / source).exists() if is_file else source in read_yaml("compose.yaml")["volumes"], source


@pytest.mark.parametrize(("profile", "server"), SERVERS.items())
def test_profile_has_server_prometheus_and_grafana(profile: str, server: str) -> None:
    found = {name for name, each in SERVICES.items() if profile in each["profiles"]}
    assert found == {server, KEYS[profile], "prometheus", "grafana"}


@pytest.mark.parametrize("server", SERVERS.values())
def test_prometheus_target_is_alias_of_server(server: str) -> None:
    (job,) = read_yaml("prometheus.yml")["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    name, _, port = target.partition(":")
    assert SERVICES[server]["networks"]["default"]["aliases"] == [name]
    assert port in [entry.rpartition(":")[2] for entry in SERVICES[server]["ports"]]


def test_server_has_its_target_and_read_only_root() -> None:
    dockerfile = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    for profile, server in SERVERS.items():
        service = SERVICES[server]
        assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).samefile(DOCKER / "Dockerfile")
        assert service["build"]["target"] == {"cpu": "cpu", "gpu": "cuda"}[profile]
        assert f"AS {service['build']['target']}\n" in dockerfile
        assert (service["read_only"], service["tmpfs"], service["cap_drop"]) == (True, ["/tmp"], ["ALL"])
        files = {"/app/models": "models", "/app/config.toml": "./config/all.toml", "/app/keys": "keys"}
        assert mounts(server) == files
    (device,) = SERVICES["roundhouse-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert "deploy" not in SERVICES["roundhouse-cpu"]


def test_ports_are_published_on_loopback_only() -> None:
    assert all(entry.startswith("127.0.0.1:") for each in SERVICES.values() for entry in each.get("ports", []))


def test_grafana_home_dashboard_is_mounted() -> None:
    (provider,) = read_yaml("grafana/provisioning/dashboards/roundhouse.yml")["providers"]
    shown = PurePosixPath(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(shown.parent) == provider["options"]["path"]
    assert (DOCKER / mounts("grafana")[provider["options"]["path"]] / shown.name).is_file()
    assert mounts("grafana")["/etc/grafana/provisioning"] == "./grafana/provisioning"
    (source,) = read_yaml("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert [entry.rpartition(":")[2] for entry in SERVICES["prometheus"]["ports"]] == ["9090"]


def test_stop_grace_period_exceeds_drain_timeout() -> None:
    from app.config.loading import Settings

    for server in SERVERS.values():
        assert float(SERVICES[server]["stop_grace_period"].rstrip("s")) > Settings().server.drain_timeout_s


@pytest.mark.parametrize("profile", SERVERS)
def test_server_starts_after_its_keys(profile: str) -> None:
    server, keys = SERVICES[SERVERS[profile]], SERVICES[KEYS[profile]]
    assert server["depends_on"] == {KEYS[profile]: {"condition": "service_completed_successfully"}}
    assert (keys["image"], keys["build"], keys["restart"]) == (server["image"], server["build"], "no")
    own, theirs = mounts(KEYS[profile]), mounts(SERVERS[profile])
    assert own["/app/keys"] == theirs["/app/keys"]
    assert own["/app/config.toml"] == theirs["/app/config.toml"]
    shared = ("ROUNDHOUSE_API_KEY", "ROUNDHOUSE_AUTH__KEYS_FILE")
    assert all(keys["environment"][name] == server["environment"][name] for name in shared)
    assert PurePosixPath(server["environment"]["ROUNDHOUSE_AUTH__KEYS_FILE"]).parent == PurePosixPath("/app/keys")


@pytest.mark.parametrize("profile", SERVERS)
def test_prometheus_reads_the_key_of_compose(profile: str) -> None:
    (job,) = read_yaml("prometheus.yml")["scrape_configs"]
    file = PurePosixPath(job["authorization"]["credentials_file"])
    written = PurePosixPath(SERVICES[KEYS[profile]]["environment"]["PROMETHEUS_KEY"])
    assert file.name == written.name
    assert mounts("prometheus")[str(file.parent)] == mounts(KEYS[profile])[str(written.parent)]


class FirstStart:
    """The keys service of compose.yaml, whose paths are in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        service = SERVICES["keys-cpu"]
        self.keys_file, self.prometheus_key = folder / "keys/keys.toml", folder / "prometheus-key/key"
        programs = folder / "bin"
        for each in (self.keys_file.parent, self.prometheus_key.parent, programs):
            each.mkdir()
        roundhouse = programs / "roundhouse"
        roundhouse.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m app "$@"\n', encoding="utf-8")
        roundhouse.chmod(0o755)
        if os.geteuid() != 0:  # only root may give files to other users
            (programs / "chown").symlink_to(shutil.which("true") or "/bin/true")
        self.environ = {name: nothing_set(value) for name, value in service["environment"].items()}
        self.environ |= {"ROUNDHOUSE_AUTH__KEYS_FILE": str(self.keys_file), "PROMETHEUS_KEY": str(self.prometheus_key)}
        self.environ |= {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        self._command = [word.replace("$$", "$") for word in service["entrypoint"]]
        self._folder = folder

    def run(self, **environ: str) -> list[str]:
        """Return the lines that it prints."""
        done = subprocess.run(
            self._command,
            env=self.environ | environ,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def scopes(self) -> list[set[str]]:
        return [set(map(str, key.scopes)) for key in read_keys(self.keys_file)[0].values()]


@pytest.mark.extended
def test_first_start_prints_one_key(tmp_path: Path) -> None:
    start = FirstStart(tmp_path)
    title, key = start.run()
    assert title == "The API key of this server:"
    assert start.scopes() == [{"infer", "read", "manage"}, {"read"}]
    for text in (key, start.prometheus_key.read_text(encoding="ascii").strip()):
        parts = split_key(text.encode())
        assert parts is not None
        assert parts[0] in read_keys(start.keys_file)[0]
    assert {stat.S_IMODE(file.stat().st_mode) for file in (start.keys_file, start.prometheus_key)} == {0o600}
    if os.geteuid() == 0:
        assert (start.keys_file.stat().st_uid, start.prometheus_key.stat().st_uid) == (10001, 65534)
    before = start.keys_file.read_bytes(), start.prometheus_key.read_bytes()
    assert start.run() == []
    assert (start.keys_file.read_bytes(), start.prometheus_key.read_bytes()) == before


@pytest.mark.extended
def test_first_start_with_given_key_prints_none(tmp_path: Path) -> None:
    start = FirstStart(tmp_path)
    assert start.run(ROUNDHOUSE_API_KEY="a-key-of-the-environment") == []
    assert start.scopes() == [{"read"}]
    assert len(start.run()) == 2
    assert start.scopes() == [{"read"}, {"infer", "read", "manage"}]
