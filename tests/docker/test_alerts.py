"""The alert rules: promtool's checks, and their results for made-up series."""

from pathlib import Path

from tests.docker.files import DOCKER, read_yaml, rules
from tests.docker.prometheus import promtool
from tests.e2e.server import ROOT


def test_promtool_accepts_configuration_and_rules(tmp_path: Path) -> None:
    (tmp_path / "key").touch()
    text = (DOCKER / "prometheus.yml").read_text(encoding="utf-8")
    text = text.replace("/run/roundhouse/key", str(tmp_path / "key")).replace("alerts.yml", str(DOCKER / "alerts.yml"))
    (tmp_path / "prometheus.yml").write_text(text, encoding="utf-8")
    promtool("check", "config", "--lint=all", "--lint-fatal", str(tmp_path / "prometheus.yml"))
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(DOCKER / "alerts.yml"))


def test_rule_fires_at_its_threshold_and_time() -> None:
    """alerts_test.yml: made-up series at the rules' own thresholds and times."""
    file = ROOT / "tests/docker/alerts_test.yml"
    promtool("test", "rules", str(file))
    tested = file.read_text(encoding="utf-8")
    assert all(f"alertname: {rule['alert']}\n" in tested for rule in rules())


def test_rule_has_severity_and_instance() -> None:
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert "$labels.instance" in rule["annotations"]["summary"]
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    (job,) = read_yaml("prometheus.yml")["scrape_configs"]
    assert {rule["expr"] for rule in rules() if "up{" in rule["expr"]} == {f'up{{job="{job["job_name"]}"}} == 0'}
