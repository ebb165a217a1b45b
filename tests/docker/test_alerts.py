"""The alert rules: promtool's judgement, what they say of made-up series, and of real servers in trouble."""

from tests.docker.conftest import Watched
from tests.docker.files import DOCKER, metrics_in, read_yaml, rules
from tests.docker.prometheus import promtool
from tests.e2e.server import ROOT, wait_until

UNIT_TESTS = "../tests/docker/alerts_test.yml"


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


def test_servers_in_trouble_make_the_rules_fire(watched: Watched) -> None:
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

    wait_until(lambda: wanted <= firing(), 30)
    # The rest of the house is well: its memory, its texts, its other models.
    assert firing() == wanted


def test_the_rules_ask_for_metrics_that_there_are(watched: Watched) -> None:
    asked = {name for rule in rules() for name in metrics_in(rule["expr"])}
    live = {sample.name for family in watched.busy.metrics().values() for sample in family.samples}
    assert asked <= live, asked - live
    assert len(asked) >= 8
