"""compose.yaml: its services find each other and their files, and each profile is complete."""

import re
from pathlib import PurePosixPath
from typing import Any

import pytest

from tests.docker.files import DOCKER, read_yaml

SERVERS = {"cpu": "roundhouse-cpu", "gpu": "roundhouse-gpu"}
SERVICES: dict[str, dict[str, Any]] = read_yaml("compose.yaml")["services"]


def mounts(service: str) -> dict[str, str]:
    """Return the source of each mount point, with nothing set in the environment."""
    found = {}
    for volume in SERVICES[service]["volumes"]:
        nothing_set = volume
        while nothing_set != (nothing_set := re.sub(r"\$\{\w+:-([^${}]*)\}", r"\1", nothing_set)):
            pass
        source, target, *_ = nothing_set.split(":")
        found[target] = source
    return found


@pytest.mark.parametrize("service", SERVICES)
def test_mounted_file_of_service_exists(service: str) -> None:
    for source in mounts(service).values():
        is_file = source.startswith(".")
        assert (DOCKER / source).exists() if is_file else source in read_yaml("compose.yaml")["volumes"], source


@pytest.mark.parametrize(("profile", "server"), SERVERS.items())
def test_profile_has_server_prometheus_and_grafana(profile: str, server: str) -> None:
    assert {name for name, each in SERVICES.items() if profile in each["profiles"]} == {server, "prometheus", "grafana"}


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
        assert mounts(server) == {"/app/models": "models", "/app/config.toml": "./config/all.toml"}
    (device,) = SERVICES["roundhouse-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert "deploy" not in SERVICES["roundhouse-cpu"]


def test_ports_are_published_on_loopback_only() -> None:
    assert all(entry.startswith("127.0.0.1:") for each in SERVICES.values() for entry in each["ports"])


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
