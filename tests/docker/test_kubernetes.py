"""The Helm chart: real Helm lints and renders it, and every object follows the schemas of Kubernetes."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tomli
import yaml  # type: ignore[import-untyped]

from tests.docker.files import metrics_in, read_yaml
from tests.docker.manifests import (
    CHART,
    NAMESPACE,
    RELEASE,
    VALUES,
    VERSIONS,
    HelmFailure,
    ask_helm,
    container_of,
    of_kind,
    pod_of,
    render,
    validate,
    workload,
)
from tests.docker.prometheus import promtool
from tests.e2e.server import ROOT

FULL_NAME = f"{RELEASE}-roundhouse"


@pytest.mark.extended
@pytest.mark.parametrize("case", VALUES)
def test_helm_lint_accepts_chart(case: str) -> None:
    report = ask_helm("lint", VALUES[case])
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [found["error"] for found in report["messages"]] == ["icon is recommended"]


@pytest.mark.extended
@pytest.mark.parametrize("case", VALUES)
def test_objects_follow_schemas_of_kubernetes(case: str) -> None:
    objects = render(VALUES[case])
    for found in objects:
        validate(found)
    assert len({(found["kind"], found["metadata"]["name"]) for found in objects}) == len(objects)


def test_schema_refuses_unknown_and_missing_keys() -> None:
    """The validation itself works, at any depth and for custom resources."""
    deployment = deepcopy(workload({}))
    container_of(deployment)["livenessProbe"]["httpGet"]["pth"] = "/"
    with pytest.raises(jsonschema.ValidationError, match="pth"):
        validate(deployment)
    monitor = deepcopy(of_kind(render(VALUES["autoscaling"]), "ServiceMonitor"))
    monitor["spec"]["endpoints"][0]["authorisation"] = {}
    with pytest.raises(jsonschema.ValidationError, match="authorisation"):
        validate(monitor)
    del monitor["spec"]
    with pytest.raises(jsonschema.ValidationError, match="spec"):
        validate(monitor)
    assert len(set(VERSIONS)) == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replicas": 2}, "persistence.accessModes: expected ReadWriteMany"),
        ({"autoscaling": {"enabled": True}}, "persistence.accessModes: expected ReadWriteMany"),
        ({"kind": "StatefulSet", "persistence": {"existingClaim": "c"}}, "persistence.existingClaim: expected none"),
        (
            {"kind": "StatefulSet", "replicas": 2, "collections": {"enabled": True}},
            "replicas: expected 1 with collections, got 2",
        ),
        (
            {"kind": "StatefulSet", "collections": {"enabled": True, "existingClaim": "c"}},
            "collections.existingClaim: expected none",
        ),
        ({"auth": {"keys": "k", "existingSecret": "s"}}, "auth.keys: expected none"),
        ({"tls": {"clientCertificates": True}}, "tls.existingSecret: expected a Secret"),
        ({"serviceMonitor": {"enabled": True}}, "serviceMonitor.keySecret.name: expected a Secret"),
        ({"replica": 2}, "replica"),
        ({"preStopSeconds": 0}, "preStopSeconds"),
        ({"fullnameOverride": "models.eu"}, "fullnameOverride"),
        ({"kind": "DaemonSet"}, "kind"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(HelmFailure) as failure:
        render(values)
    assert words in str(failure.value)


def test_chart_has_version_of_server() -> None:
    tools = tomli.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    chart = read_yaml("kubernetes/roundhouse/Chart.yaml")
    next_release = tools["setuptools_scm"]["fallback_version"].removesuffix(".dev0")
    assert chart["name"] == CHART.name
    assert f"{chart['appVersion']}.".startswith(f"{next_release}.")


@pytest.mark.parametrize("case", VALUES)
def test_references_between_objects_hold(case: str) -> None:
    objects = render(VALUES[case])
    found = of_kind(objects, "Deployment", "StatefulSet")
    labels = found["spec"]["template"]["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in container_of(found)["ports"]}
    assert ports == {"http": 8080, "grpc": 8081}
    names = {(each["kind"], each["metadata"]["name"]) for each in objects}
    selectors = [each["spec"]["selector"] for each in objects if each["kind"] == "Service"]
    selectors += [
        each["spec"].get("selector", each["spec"].get("podSelector"))["matchLabels"]
        for each in objects
        if each["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy")
    ]
    assert len(selectors) >= 3
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert all(each["targetPort"] in ports for s in objects if s["kind"] == "Service" for each in s["spec"]["ports"])
    if found["kind"] == "StatefulSet":
        assert ("Service", found["spec"]["serviceName"]) in names
    for each in objects:
        if each["kind"] == "HorizontalPodAutoscaler":
            assert (each["spec"]["scaleTargetRef"]["kind"], each["spec"]["scaleTargetRef"]["name"]) in names
            assert "replicas" not in found["spec"]
        if each["kind"] == "ServiceMonitor":
            matching = [
                s
                for s in objects
                if s["kind"] == "Service"
                and each["spec"]["selector"]["matchLabels"].items() <= s["metadata"]["labels"].items()
            ]
            assert [s["metadata"]["name"] for s in matching] == [of_kind(objects, "ServiceMonitor")["metadata"]["name"]]
            assert matching[0]["metadata"]["labels"][each["spec"]["jobLabel"]] == "roundhouse"


@pytest.mark.parametrize(
    ("case", "claim"),
    [
        ("collections", f"{FULL_NAME}-collections"),
        ("existing-collections", "our-records"),
        ("stateful-collections", None),
        ("defaults", None),
    ],
)
def test_collections_have_volume_of_one_pod(case: str, claim: str | None) -> None:
    objects = render(VALUES[case])
    found = of_kind(objects, "Deployment", "StatefulSet")
    mounts = {each["name"]: each["mountPath"] for each in container_of(found)["volumeMounts"]}
    volumes = {each["name"]: each for each in pod_of(found)["volumes"]}
    assert mounts.get("collections") == (None if case == "defaults" else "/app/collections")
    if claim is not None:
        assert volumes["collections"]["persistentVolumeClaim"] == {"claimName": claim}
        # Two processes cannot have one collection, not even while the pod is replaced.
        assert found["spec"]["strategy"] == {"type": "Recreate"}
    claims = {each["metadata"]["name"]: each for each in objects if each["kind"] == "PersistentVolumeClaim"}
    assert (claim in claims) is (case == "collections")
    if case == "collections":
        assert claims[claim]["spec"]["resources"] == {"requests": {"storage": "30Gi"}}
        assert claims[claim]["spec"]["storageClassName"] == "fast"
        assert claims[claim]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    if case == "stateful-collections":
        assert [each["metadata"]["name"] for each in found["spec"]["volumeClaimTemplates"]] == ["models", "collections"]


def test_network_is_closed_except_named_peers() -> None:
    policy = of_kind(render({}), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert [rule["from"] for rule in policy["ingress"]] == [[{"podSelector": {}}]]
    assert [[port["port"] for port in rule["ports"]] for rule in policy["egress"]] == [[53, 53]]
    shut = of_kind(render(VALUES["open"]), "NetworkPolicy")["spec"]
    assert (shut["ingress"], shut["egress"]) == ([], [])
    hubs = of_kind(render(VALUES["autoscaling"]), "NetworkPolicy")["spec"]["egress"][1]
    assert [port["port"] for port in hubs["ports"]] == [443]
    assert all(peer["ipBlock"]["except"] for peer in hubs["to"])


def test_monitor_sends_key_and_certificates() -> None:
    (endpoint,) = of_kind(render(VALUES["client-certificates"]), "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": {"name": "scrape", "key": "key"}}
    assert (endpoint["path"], endpoint["scheme"]) == ("/metrics", "https")
    assert endpoint["tlsConfig"]["serverName"] == f"{FULL_NAME}.{NAMESPACE}.svc"
    (endpoint,) = of_kind(render(VALUES["open"]), "ServiceMonitor")["spec"]["endpoints"]
    assert "authorization" not in endpoint


def test_metrics_of_autoscaling_exist() -> None:
    """Metrics of the HPA are served by prometheus-adapter, whose rules name metrics of the server."""
    rules = read_yaml("kubernetes/prometheus-adapter.yaml")["rules"]["custom"]
    offered = {rule["name"]["as"] for rule in rules}
    for values in ({"kind": "StatefulSet", "autoscaling": {"enabled": True}}, VALUES["autoscaling"]):
        metrics = of_kind(render(values), "HorizontalPodAutoscaler")["spec"]["metrics"]
        assert {metric["pods"]["metric"]["name"] for metric in metrics} <= offered
    known = metrics_in((ROOT / "docs/metrics.md").read_text(encoding="utf-8"))
    for rule in rules:
        assert metrics_in(rule["seriesQuery"]) <= known
        assert rule["resources"]["overrides"].keys() == {"namespace", "pod"}


def test_adapter_rules_are_valid_queries(tmp_path: Path) -> None:
    """The adapter fills in the series, its matchers and the grouping."""
    filled = {"<<.Series>>": "roundhouse_inflight", "<<.LabelMatchers>>": 'pod=~"a|b"', "<<.GroupBy>>": "pod"}
    expressions = []
    for rule in read_yaml("kubernetes/prometheus-adapter.yaml")["rules"]["custom"]:
        query = rule["metricsQuery"]
        for word, text in filled.items():
            assert word in query
            query = query.replace(word, text)
        expressions += [query, rule["seriesQuery"]]
    rules = [{"record": f"rule:{number}", "expr": text} for number, text in enumerate(expressions)]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "adapter", "rules": rules}]}), encoding="utf-8")
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(file))


def test_manual_shows_valid_values() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    examples = [
        yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    ]
    values = [example for example in examples if "apiVersion" not in example]
    assert len(values) >= 3
    for example in values:
        for found in render(example):
            validate(found)
    tables = set(re.findall(r"^\| ((?:`[\w.]+`,? ?)+) \|", page, flags=re.MULTILINE))
    named = {name.split(".")[0] for cell in tables for name in re.findall(r"`([\w.]+)`", cell)}
    described = {"nameOverride", "fullnameOverride", "tmpSizeLimit", "updateStrategy", "serviceAccount"}
    described |= {"podAnnotations", "podLabels", "volumes", "volumeMounts", "initContainers"}
    assert read_yaml("kubernetes/roundhouse/values.yaml").keys() <= named | described
