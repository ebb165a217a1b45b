"""Read the files below docker/ like the programs that use them."""

import json
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def pinned(file: str, folder: Path = DOCKER) -> set[str]:
    """Return the names of the packages of a file of constraints. Each line has an exact version."""
    lines = (folder / file).read_text(encoding="utf-8").splitlines()
    found = [line.partition("==") for line in lines if line and not line.startswith("#")]
    assert all(name and version for name, _, version in found)
    return {canonicalize_name(name) for name, _, version in found}


def needed(requirement: Requirement, found: set[str]) -> set[str]:
    """Return the names of a package and of all that it needs here, as far as it is installed."""
    found.add(canonicalize_name(requirement.name))
    try:
        lines = distribution(requirement.name).requires or ()
    except PackageNotFoundError:
        return found
    for each in map(Requirement, lines):
        extras = (*requirement.extras, "")
        applies = each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
        if applies and canonicalize_name(each.name) not in found:
            needed(each, found)
    return found
