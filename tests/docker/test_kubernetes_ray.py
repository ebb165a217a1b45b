"""The RayService of KubeRay: schemas, its config, and rules of its pods."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml  # type: ignore[import-untyped]

from app.config import load_settings
from extensions.ray.checks import check_for_ray
from extensions.ray.settings import ray_settings
from tests.docker.files import DOCKER
from tests.docker.manifests import KUBERNETES, of_kind, read_documents, validate
from tests.docker.ray_pods import groups_of
from tests.docker.test_kubernetes_start import create_key
from tests.e2e.server import ROOT

pytestmark = pytest.mark.extended

OBJECTS = list(read_documents((KUBERNETES / "ray/rayservice.yaml").read_text(encoding="utf-8")))
SERVICE = of_kind(OBJECTS, "RayService")
CONFIG = of_kind(OBJECTS, "ConfigMap")["data"]["config.toml"]
GROUPS = groups_of(SERVICE)


def pod_of(group: str) -> dict[str, Any]:
    pod: dict[str, Any] = GROUPS[group]["template"]["spec"]
    return pod


def container_of(group: str) -> dict[str, Any]:
    (container,) = pod_of(group)["containers"]
    result: dict[str, Any] = container
    return result


def labels_of(group: str) -> dict[str, str]:
    labels: dict[str, str] = GROUPS[group]["template"]["metadata"]["labels"]
    return labels


def resources_of(group: str) -> dict[str, float]:
    """Return the custom resources of a group, as a shell passes them to `ray start`."""
    text = GROUPS[group]["rayStartParams"].get("resources", "'{}'")
    found: dict[str, float] = json.loads(text[1:-1].replace('\\"', '"'))
    return found


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    """The settings of the ConfigMap, with a keys file and paths of this repository."""
    (tmp_path / "keys.toml").write_bytes(create_key(tmp_path)[1])
    text = CONFIG.replace("/opt/roundhouse", str(ROOT / "app")).replace("/app/models", str(tmp_path))
    file = tmp_path / "config.toml"
    file.write_text(text.replace("/app/keys", str(tmp_path)), encoding="utf-8")
    return load_settings(file, {})


def test_objects_follow_schemas() -> None:
    for found in OBJECTS:
        validate(found)
    kinds = [found["kind"] for found in OBJECTS]
    assert kinds == ["ConfigMap", "RayService", "Service", "PodDisruptionBudget", "NetworkPolicy", "NetworkPolicy"]


@pytest.mark.parametrize("path", [(), ("headGroupSpec",), ("headGroupSpec", "template", "spec"), ("authOptions",)])
def test_schema_refuses_unknown_keys(path: tuple[str, ...]) -> None:
    changed = deepcopy(SERVICE)
    place = changed["spec"]["rayClusterConfig"]
    for key in path:
        place = place[key]
    place["rayVersoin"] = "2.60.0"
    with pytest.raises(jsonschema.ValidationError, match="rayVersoin"):
        validate(changed)


def test_serve_config_follows_schema_of_serve() -> None:
    from ray.serve.schema import ServeDeploySchema

    config = ServeDeploySchema.model_validate(yaml.safe_load(SERVICE["spec"]["serveConfigV2"]))
    assert config.proxy_location == "Disabled"
    (application,) = config.applications
    (mount,) = (each for each in container_of("ingress")["volumeMounts"] if each["name"] == "config")
    assert application.args == {"config": f"{mount['mountPath']}/config.toml"}


def test_config_is_valid_on_ray(settings: Any) -> None:
    check_for_ray(settings)
    (application,) = yaml.safe_load(SERVICE["spec"]["serveConfigV2"])["applications"]
    assert ray_settings(settings.settings).application == application["name"]


def test_ingresses_and_models_fit_their_groups(settings: Any) -> None:
    ray = ray_settings(settings.settings)
    assert {group: resources_of(group) for group in GROUPS} == {
        "head": {}, "ingress": {ray.ingress_resource: 1}, "models": {}
    }  # fmt: skip
    cpus = {group: float(GROUPS[group]["rayStartParams"]["num-cpus"]) for group in GROUPS}
    assert (cpus["head"], cpus["ingress"], ray.ingress_cpus) == (0, 0, 0)
    assert GROUPS["ingress"]["replicas"] == ray.ingress_replicas
    models = settings.settings.models.onnx_models
    assert sum(each.num_cpus * each.replicas for each in models) <= cpus["models"] * GROUPS["models"]["replicas"]
    assert cpus["models"] == float(container_of("models")["resources"]["requests"]["cpu"])


@pytest.mark.parametrize("group", GROUPS)
def test_ray_ports_differ_from_server_ports(group: str, settings: Any) -> None:
    ports = {each["name"]: each["containerPort"] for each in container_of(group)["ports"]}
    assert str(ports["metrics"]) == GROUPS[group]["rayStartParams"]["metrics-export-port"]
    server = settings.settings.server
    assert not {server.port, server.grpc_port} & {ports[name] for name in ports if name not in ("http", "grpc")}
    if group == "ingress":
        assert (ports["http"], ports["grpc"]) == (server.port, server.grpc_port)


@pytest.mark.parametrize("group", GROUPS)
def test_pod_has_user_of_image_and_no_rights(group: str) -> None:
    dockerfile = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    pod, container = pod_of(group), container_of(group)
    users = set(re.findall(r"^USER (\d+):(\d+)$", dockerfile, flags=re.MULTILINE))
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


def test_pods_have_same_files_and_variables() -> None:
    """Any of them may build the application for Ray Serve."""
    for key in ("env", "volumeMounts"):
        assert container_of("head")[key] == container_of("ingress")[key] == container_of("models")[key]
    assert pod_of("head")["volumes"] == pod_of("ingress")["volumes"] == pod_of("models")["volumes"]


@pytest.mark.parametrize("group", GROUPS)
def test_pod_has_volumes_and_own_probes(group: str) -> None:
    pod, container = pod_of(group), container_of(group)
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/app/models", "/tmp", "/dev/shm"}
    # The default probes of KubeRay need programs that the image lacks, and the proxy of Ray Serve.
    assert {"readinessProbe", "livenessProbe"} <= container.keys()
    assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]
    if "lifecycle" in container:
        sleep_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert pod["terminationGracePeriodSeconds"] > sleep_s
        assert sleep_s > container["readinessProbe"]["periodSeconds"] * container["readinessProbe"]["failureThreshold"]


def test_service_selects_ingresses_only() -> None:
    service = of_kind(OBJECTS, "Service")
    budget = of_kind(OBJECTS, "PodDisruptionBudget")
    selector = service["spec"]["selector"]
    assert [group for group in GROUPS if selector.items() <= labels_of(group).items()] == ["ingress"]
    assert budget["spec"]["selector"]["matchLabels"] == selector
    named = {port["name"] for port in container_of("ingress")["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= named


def test_policies_admit_clients_to_ingresses_only() -> None:
    every, clients = (found["spec"] for found in OBJECTS if found["kind"] == "NetworkPolicy")
    labels = every["podSelector"]["matchLabels"]
    assert all(labels.items() <= labels_of(group).items() for group in GROUPS)
    assert every["ingress"][0] == {"from": [{"podSelector": {"matchLabels": labels}}]}
    selected = clients["podSelector"]["matchLabels"].items()
    assert [group for group in GROUPS if selected <= labels_of(group).items()] == ["ingress"]


def test_raised_revision_is_another_version() -> None:
    """Ray Serve builds the application again, and so reads the changed config."""
    from ray.serve._private.deploy_utils import get_app_code_version
    from ray.serve.schema import ServeDeploySchema

    text = SERVICE["spec"]["serveConfigV2"]
    changed = text.replace('CONFIG_REVISION: "1"', 'CONFIG_REVISION: "2"')
    versions = [
        get_app_code_version(ServeDeploySchema.model_validate(yaml.safe_load(each)).applications[0])
        for each in (text, text, changed)
    ]
    assert versions[0] == versions[1] != versions[2]


def test_versions_of_ray_are_those_of_image() -> None:
    pinned = re.search(r"^ray==(.*)$", (DOCKER / "ray-constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned
    assert SERVICE["spec"]["rayClusterConfig"]["rayVersion"] == pinned[1]
    assert {container_of(group)["image"] for group in GROUPS} == {"roundhouse:cpu-ray"}
