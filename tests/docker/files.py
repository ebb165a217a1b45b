"""What lies in docker/, read as those read it who use it."""

import json
import re
from functools import cache
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.e2e.server import ROOT

DOCKER = ROOT / "docker"
STEP_S = 5
"""How often Prometheus asks, by prometheus.yml."""


@cache
def read_yaml(name: str) -> Any:
    """A YAML file below docker/."""
    return yaml.safe_load((DOCKER / name).read_text(encoding="utf-8"))


@cache
def dashboard() -> dict[str, Any]:
    """Grafana's dashboard."""
    found: dict[str, Any] = json.loads((DOCKER / "grafana/dashboards/roundhouse.json").read_text(encoding="utf-8"))
    return found


def panels() -> list[dict[str, Any]]:
    """The dashboard's panels that show something."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    """The alert rules."""
    return [rule for group in read_yaml("alerts.yml")["groups"] for rule in group["rules"]]


def filled_in(expression: str) -> str:
    """A panel's expression as Grafana sends it where every server and model is looked at."""
    filled = expression.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$model", ".*")
    assert "$" not in filled, filled
    return filled


def metrics_in(expression: str) -> set[str]:
    """The names of ours that an expression asks for."""
    return set(re.findall(r"\broundhouse_\w+", expression))
