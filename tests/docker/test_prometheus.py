"""A real Prometheus scrapes real servers in trouble: alerts fire, and panels of the dashboard have data."""

import re
from collections.abc import Iterator

import pytest

from tests.docker.files import dashboard, filled_in, metrics_in, panels, rules
from tests.docker.overloaded import Watched, watched_servers
from tests.e2e.server import wait_until

pytestmark = pytest.mark.extended

EXPRESSIONS = [
    pytest.param(target["expr"], target["legendFormat"], id=f"{panel['title']}-{target['refId']}")
    for panel in panels()
    for target in panel["targets"]
]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched_servers(tmp_path_factory.mktemp("watched")) as found:
        yield found


def test_alerts_fire_for_servers_in_trouble(watched: Watched) -> None:
    busy, failed = (f"127.0.0.1:{server.port}" for server in (watched.busy, watched.failed))
    wanted = {
        ("RoundhouseDown", watched.gone, None),
        ("RoundhouseModelFailed", failed, "missing"),
        ("RoundhouseNoReadyModel", failed, None),
        ("RoundhouseErrors", busy, "slow"),
        ("RoundhouseRefusing", busy, None),
        ("RoundhouseQueueNearItsBound", busy, "slow"),
    }

    def firing() -> set[tuple[str, str, str | None]]:
        return {
            (name, labels["instance"], labels.get("model"))
            for name, alerts in watched.prometheus.firing().items()
            for labels in alerts
        }

    # Latency depends on the machine. Memory, texts and other models have no alert. On a busy machine a scrape may be
    # missed, so the alerts may differ for a while.
    wait_until(lambda: {alert for alert in firing() if not alert[0].startswith("RoundhouseSlow")} == wanted)


def test_rules_use_existing_metrics(watched: Watched) -> None:
    asked = {name for rule in rules() for name in metrics_in(rule["expr"])}
    live = {sample.name for family in watched.busy.metrics().values() for sample in family.samples}
    assert asked <= live, asked - live
    assert len(asked) >= 8


@pytest.mark.parametrize(("expression", "legend"), EXPRESSIONS)
def test_panel_has_data_of_busy_server(watched: Watched, expression: str, legend: str) -> None:
    """The samples have every label that the legend names."""
    wait_until(lambda: bool(watched.prometheus.query(filled_in(expression))))
    for found in watched.prometheus.query(filled_in(expression)):
        assert set(re.findall(r"{{(\w+)}}", legend)) <= found["metric"].keys(), found


@pytest.mark.extended
def test_variables_and_annotations_use_existing_metrics(watched: Watched) -> None:
    live = {sample.name for family in watched.busy.metrics().values() for sample in family.samples}
    for variable in dashboard()["templating"]["list"]:
        label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
        assert label
        assert metrics_in(label[1]) <= live
        assert all(label[2] in found["metric"] for found in watched.prometheus.query(filled_in(label[1])))
    (marks,) = dashboard()["annotations"]["list"]
    wait_until(lambda: bool(watched.prometheus.query(marks["expr"])))
