"""The alert rules: promtool's judgement, and what they say of made-up series."""

from tests.docker.files import DOCKER, read_yaml, rules
from tests.docker.prometheus import promtool
from tests.e2e.server import ROOT


def test_promtool_finds_nothing_wrong() -> None:
    promtool("check", "config", "--lint=all", "--lint-fatal", str(DOCKER / "prometheus.yml"))
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(DOCKER / "alerts.yml"))


def test_each_rule_fires_when_it_should_and_not_before() -> None:
    """alerts_test.yml: made-up series at the rules' own thresholds and times."""
    file = ROOT / "tests/docker/alerts_test.yml"
    promtool("test", "rules", str(file))
    tested = file.read_text(encoding="utf-8")
    assert all(f"alertname: {rule['alert']}\n" in tested for rule in rules())


def test_every_rule_says_how_bad_it_is_and_where() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert "$labels.instance" in rule["annotations"]["summary"]
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    (job,) = read_yaml("prometheus.yml")["scrape_configs"]
    assert {rule["expr"] for rule in rules() if "up{" in rule["expr"]} == {f'up{{job="{job["job_name"]}"}} == 0'}
