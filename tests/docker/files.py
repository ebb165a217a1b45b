"""Read the files below docker/ like the programs that use them."""

import json
import re
from functools import cache
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.e2e.server import ROOT

DOCKER = ROOT / "docker"
STEP_S = 5
"""Seconds between two scrapes, as in prometheus.yml."""


@cache
def read_yaml(name: str) -> Any:
    """Return the content of a YAML file below docker/."""
    return yaml.safe_load((DOCKER / name).read_text(encoding="utf-8"))


@cache
def dashboard() -> dict[str, Any]:
    """Return Grafana's dashboard."""
    found: dict[str, Any] = json.loads((DOCKER / "grafana/dashboards/roundhouse.json").read_text(encoding="utf-8"))
    return found


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard without its rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    return [rule for group in read_yaml("alerts.yml")["groups"] for rule in group["rules"]]


def filled_in(expression: str) -> str:
    """Return a panel's expression as Grafana sends it when every server and model is selected."""
    filled = expression.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$model", ".*")
    assert "$" not in filled, filled
    return filled


def metrics_in(expression: str) -> set[str]:
    """Return the names of this server's metrics in an expression."""
    return set(re.findall(r"\broundhouse_\w+", expression))
