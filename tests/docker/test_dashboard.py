"""Grafana's dashboard: its metrics, data source and layout."""

from itertools import combinations

from tests.docker.files import dashboard, metrics_in, panels, read_yaml


def test_dashboard_shows_the_metrics_of_an_operator() -> None:
    shown = {name for panel in panels() for target in panel["targets"] for name in metrics_in(target["expr"])}
    assert {
        "roundhouse_requests_total", "roundhouse_request_seconds_bucket", "roundhouse_queue_seconds_bucket",
        "roundhouse_compute_seconds_bucket", "roundhouse_batch_size_bucket", "roundhouse_rejected_total",
        "roundhouse_queue_depth", "roundhouse_model_state", "roundhouse_model_memory_bytes",
        "roundhouse_model_budget_bytes", "roundhouse_tokens_generated_total",
        "roundhouse_time_to_first_token_seconds_bucket",
    } <= shown  # fmt: skip


def test_dashboard_uses_the_provisioned_prometheus() -> None:
    (source,) = read_yaml("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    asked = [panel["datasource"] for panel in panels()]
    asked += [target["datasource"] for panel in panels() for target in panel["targets"]]
    asked += [variable["datasource"] for variable in dashboard()["templating"]["list"]]
    asked += [marks["datasource"] for marks in dashboard()["annotations"]["list"]]
    assert all(one == {"type": "prometheus", "uid": source["uid"]} for one in asked)
    assert source["jsonData"]["timeInterval"] == read_yaml("prometheus.yml")["global"]["scrape_interval"]


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in dashboard()["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(places)
