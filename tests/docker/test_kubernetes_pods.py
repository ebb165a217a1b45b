"""The pods of the Helm chart: time to start and stop, user and rights, volumes, keys, GPUs."""

import re
from typing import Any

import pytest

from app.config.loading import Settings
from tests.docker.files import read_yaml
from tests.docker.manifests import (
    RELEASE,
    VALUES,
    container_of,
    environ_of,
    of_kind,
    pod_of,
    render,
    rendered_files,
    workload,
)
from tests.e2e.server import ROOT

pytestmark = pytest.mark.extended

DOCKERFILE = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
FULL_NAME = f"{RELEASE}-roundhouse"


@pytest.mark.parametrize("case", VALUES)
def test_grace_period_exceeds_stop_of_server(case: str) -> None:
    found = workload(VALUES[case])
    drain_s = float(environ_of(found)["ROUNDHOUSE_SERVER__DRAIN_TIMEOUT_S"])
    sleep_s = container_of(found)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod_of(found)["terminationGracePeriodSeconds"] >= sleep_s + drain_s + 10
    # The endpoints of the pod are removed before the server refuses connections.
    readiness = container_of(found)["readinessProbe"]
    assert sleep_s >= readiness["periodSeconds"]


def test_default_drain_is_that_of_server() -> None:
    assert read_yaml("kubernetes/roundhouse/values.yaml")["drainTimeoutSeconds"] == Settings().server.drain_timeout_s


@pytest.mark.parametrize("case", VALUES)
def test_start_has_time_for_large_models(case: str) -> None:
    found = workload(VALUES[case])
    start = container_of(found)["startupProbe"]
    time_s = start["periodSeconds"] * start["failureThreshold"]
    assert time_s >= VALUES[case].get("probes", {}).get("startup", {}).get("timeoutSeconds", 600)
    if found["kind"] == "Deployment":
        assert found["spec"]["progressDeadlineSeconds"] > time_s


@pytest.mark.parametrize("case", VALUES)
def test_pod_has_user_of_image_and_no_rights(case: str) -> None:
    pod, container = pod_of(workload(VALUES[case])), container_of(workload(VALUES[case]))
    users = set(re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, flags=re.MULTILINE))
    security = pod["securityContext"]
    assert users == {(str(security["runAsUser"]), str(security["runAsGroup"]))}
    assert security["fsGroup"] == security["runAsGroup"]
    assert (security["runAsNonRoot"], security["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)


@pytest.mark.parametrize("case", VALUES)
def test_mounts_have_volumes_and_volumes_mounts(case: str) -> None:
    found = workload(VALUES[case])
    volumes = {volume["name"] for volume in pod_of(found)["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in found["spec"].get("volumeClaimTemplates", ())}
    assert {mount["name"] for mount in container_of(found)["volumeMounts"]} == volumes
    assert {"/app/models", "/tmp"} <= {
        mount["mountPath"] for mount in container_of(found)["volumeMounts"] if not mount.get("readOnly")
    }


def test_gpus_select_image_and_resources() -> None:
    found = workload(VALUES["gpu"])
    assert container_of(found)["image"] == "roundhouse:cuda"
    resources = container_of(found)["resources"]
    assert resources["limits"] == {"memory": "64Gi", "cpu": "8", "nvidia.com/gpu": "2"}
    assert resources["requests"]["nvidia.com/gpu"] == "2"
    assert container_of(workload({}))["image"] == "roundhouse:cpu"
    assert container_of(workload({}))["resources"]["limits"] == {"memory": "2Gi"}
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", DOCKERFILE, flags=re.MULTILINE))
    assert {"cpu", "cuda"} <= targets
    assert container_of(workload(VALUES["no-persistence"]))["image"].startswith("registry.example.org/roundhouse@sha")


@pytest.mark.parametrize(
    ("case", "secret", "has_own"),
    [
        ("defaults", f"{FULL_NAME}-keys", False),
        ("keys", f"{FULL_NAME}-keys", True),
        ("existing-secret", "our-keys", False),
        ("api-key", None, False),
        ("open", None, False),
    ],
)
def test_keys_arrive_from_one_secret(case: str, secret: str | None, has_own: bool) -> None:
    objects = render(VALUES[case])
    found = of_kind(objects, "Deployment")
    mounted = [volume["secret"]["secretName"] for volume in pod_of(found)["volumes"] if volume["name"] == "keys"]
    assert mounted == ([secret] if secret else [])
    assert ("ROUNDHOUSE_AUTH__KEYS_FILE" in environ_of(found)) == bool(secret)
    assert [each["metadata"]["name"] for each in objects if each["kind"] == "Secret"] == ([secret] if has_own else [])
    assert ("ROUNDHOUSE_API_KEY" in environ_of(found)) == (case == "api-key")
    assert (f"create secret generic {secret}" in rendered_files(case)["NOTES.txt"]) == bool(secret and not has_own)


def test_config_change_restarts_pods() -> None:
    def annotations(values: dict[str, Any]) -> Any:
        return workload(values)["spec"]["template"]["metadata"]["annotations"]

    assert annotations({}) != annotations({"config": "[server]\n"})
    assert annotations({}) == annotations({"replicas": 0})


@pytest.mark.parametrize("case", ["no-persistence", "shared-volume", "existing-claim", "stateful"])
def test_models_are_kept_where_asked(case: str) -> None:
    objects = render(VALUES[case])
    found = of_kind(objects, "Deployment", "StatefulSet")
    (volume,) = [volume for volume in pod_of(found)["volumes"] if volume["name"] == "models"] or [None]
    claims = [each["metadata"]["name"] for each in objects if each["kind"] == "PersistentVolumeClaim"]
    if case == "no-persistence":
        assert volume == {"name": "models", "emptyDir": {"sizeLimit": "20Gi"}}
        assert claims == []
    elif case == "stateful":
        assert volume is None
        assert found["spec"]["volumeClaimTemplates"][0]["spec"]["accessModes"] == ["ReadWriteOnce"]
    else:
        claim = "models" if case == "existing-claim" else f"{FULL_NAME}-models"
        assert volume == {"name": "models", "persistentVolumeClaim": {"claimName": claim}}
        assert claims == ([] if case == "existing-claim" else [claim])
    strategy = {"existing-claim": "Recreate", "stateful": None}.get(case, "RollingUpdate")
    assert found["spec"].get("strategy", {}).get("type") == strategy


def test_spread_counts_pods_of_release() -> None:
    for values in ({}, VALUES["autoscaling"]):
        found = workload(values)
        (spread,) = pod_of(found)["topologySpreadConstraints"]
        assert spread["labelSelector"] == found["spec"]["selector"]
        assert spread["topologyKey"].partition("/")[0].endswith("kubernetes.io")


@pytest.mark.parametrize("keep", [True, False])
def test_claim_stays_when_asked(keep: bool) -> None:
    claim = of_kind(render({"persistence": {"keep": keep}}), "PersistentVolumeClaim")
    assert (claim["metadata"].get("annotations") == {"helm.sh/resource-policy": "keep"}) == keep
    found = workload({"kind": "StatefulSet", "persistence": {"keep": keep}})
    policy = found["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert policy == {"whenDeleted": "Retain" if keep else "Delete", "whenScaled": "Retain"}
