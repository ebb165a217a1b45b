"""Render the chart below docker/kubernetes, read manifests, and validate them with the schemas of Kubernetes."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml  # type: ignore[import-untyped]
from referencing import Registry, Resource

from tests.docker.files import DOCKER

KUBERNETES = DOCKER / "kubernetes"
CHART = KUBERNETES / "roundhouse"
RELEASE, NAMESPACE = "prod", "models"
"""As in helm.py."""

VERSIONS = ("1.32", kubernetes_validate.latest_version().removesuffix(".0"))
"""The versions of Kubernetes whose schemas every manifest has to follow."""

CUSTOM = ("InferenceService", "RayService", "ServiceMonitor", "ServingRuntime")
"""Custom resources. tests/docker/schemas has their schemas."""

VALUES: Mapping[str, dict[str, Any]] = {
    "defaults": {},
    "gpu": {
        "gpu": {"count": 2},
        "runtimeClassName": "nvidia",
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "drainTimeoutSeconds": 120,
        "probes": {"startup": {"timeoutSeconds": 1803}},
        "resources": {"limits": {"memory": "64Gi", "cpu": "8"}},
    },
    "keys": {"auth": {"keys": '[[keys]]\nid = "abc"\n'}, "allowedHosts": ["models.example.org"]},
    "existing-secret": {"auth": {"existingSecret": "our-keys"}, "imagePullSecrets": [{"name": "registry"}]},
    "api-key": {"auth": {"apiKeySecret": {"name": "our-key", "key": "api-key"}}, "fullnameOverride": "models"},
    "open": {
        "auth": {"mode": "off"},
        "serviceMonitor": {"enabled": True},
        "networkPolicy": {"from": [], "dns": {"to": []}},
        "serviceAccount": {"create": False},
        "podDisruptionBudget": {"maxUnavailable": "50%"},
    },
    "no-persistence": {
        "persistence": {"enabled": False},
        "replicas": 3,
        "image": {"repository": "registry.example.org/roundhouse", "digest": "sha256:" + "0" * 64},
        "env": [{"name": "ROUNDHOUSE_LOGGING__LEVEL", "value": "debug"}],
    },
    "shared-volume": {"persistence": {"accessModes": ["ReadWriteMany"], "storageClass": "nfs"}, "replicas": 2},
    "existing-claim": {"persistence": {"existingClaim": "models"}, "service": {"type": "LoadBalancer"}},
    "collections": {"collections": {"enabled": True, "storageClass": "fast", "size": "30Gi"}},
    "existing-collections": {
        "persistence": {"enabled": False},
        "collections": {"enabled": True, "existingClaim": "our-records"},
    },
    "stateful-collections": {"kind": "StatefulSet", "collections": {"enabled": True, "keep": False}},
    "stateful": {"kind": "StatefulSet", "replicas": 2, "networkPolicy": {"enabled": False}},
    "autoscaling": {
        "kind": "StatefulSet",
        "autoscaling": {"enabled": True, "metrics": [{"name": "roundhouse_queue_depth", "averageValue": 4}]},
        "serviceMonitor": {"enabled": True, "keySecret": {"name": "scrape"}, "labels": {"release": "prometheus"}},
        "networkPolicy": {
            "hubs": True,
            "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "egress": [{"ports": [{"port": 4318, "protocol": "TCP"}]}],
        },
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
        ],
    },
    "tls": {"tls": {"existingSecret": "certificate"}},
    "client-certificates": {
        "tls": {"existingSecret": "certificate", "clientCertificates": True},
        "serviceMonitor": {"enabled": True, "keySecret": {"name": "scrape"}},
        "volumes": [{"name": "extra", "emptyDir": {}}],
        "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
        "initContainers": [{"name": "fetch", "image": "busybox", "command": ["true"]}],
    },
}
"""Values of an operator, by the case that they show."""


class HelmFailure(Exception):
    """Helm refused the chart or its values. The message is Helm's."""


def ask_helm(do: str, values: Mapping[str, Any], chart: Path = CHART) -> Any:
    """Return the answer of helm.py. Raises HelmFailure. Skip the test without Helm, except in CI."""
    if find_spec("helm_python") is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no Helm; make dev installs it with helm-python-sdk")
        pytest.skip("needs helm-python-sdk, which this platform does not have")
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("helm.py")],
        input=json.dumps({"do": do, "values": values, "chart": str(chart)}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise HelmFailure(done.stderr)
    return json.loads(done.stdout)


@cache
def _rendered(values: str) -> dict[str, str]:
    answer: dict[str, str] = ask_helm("render", json.loads(values))
    return answer


def rendered_files(case: str) -> dict[str, str]:
    """Return the rendered text of each template, by its file name, for one of VALUES."""
    return {Path(name).name: text for name, text in _rendered(json.dumps(VALUES[case])).items()}


def render(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of the chart with these values. Raises HelmFailure."""
    files = _rendered(json.dumps(values))
    return [found for name, text in files.items() if not name.endswith("NOTES.txt") for found in read_documents(text)]


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> dict[str, Any]:
    """Return the only object of these kinds."""
    (found,) = (each for each in objects if each["kind"] in kinds)
    return found


def workload(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Deployment or StatefulSet of the chart."""
    return of_kind(render(values), "Deployment", "StatefulSet")


def pod_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of the pods of a Deployment or StatefulSet."""
    pod: dict[str, Any] = found["spec"]["template"]["spec"]
    return pod


def container_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return the only container of these pods."""
    (container,) = pod_of(found)["containers"]
    result: dict[str, Any] = container
    return result


def environ_of(found: dict[str, Any]) -> dict[str, str]:
    """Return the plain variables of this container."""
    return {each["name"]: each.get("value", "") for each in container_of(found)["env"]}


class _UniqueKeys(yaml.SafeLoader):  # type: ignore[misc]
    """A loader that refuses a mapping with a repeated key, as the API server does with strict validation."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a repeated key among {keys}"
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found


def read_documents(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a YAML file."""
    yield from (found for found in yaml.load_all(text, Loader=_UniqueKeys) if found)


def validate(found: dict[str, Any]) -> None:
    """Check an object with the schemas of Kubernetes, or of its custom resource. Raises jsonschema.ValidationError."""
    for version in VERSIONS:
        schema = _schema(found["kind"], found["apiVersion"], version)
        jsonschema.Draft202012Validator(schema, registry=_definitions(version)).validate(found)


@cache
def _schema(kind: str, api_version: str, version: str) -> Any:
    """Return the schema of a kind. Files of Kubernetes are named like `deployment-apps-v1.json`, without the domain."""
    if kind in CUSTOM:
        file = Path(__file__).parent / f"schemas/{kind.lower()}.json"
    else:
        file = _schemas(version) / f"{kind.lower()}-{re.sub(r'[.][^/]*/|/', '-', api_version)}.json"
    return json.loads(file.read_text(encoding="utf-8"))


def _schemas(version: str) -> Path:
    """Return the folder of the schemas of a version of Kubernetes that refuse unknown keys."""
    (folder,) = Path(kubernetes_validate.__file__).parent.glob(f"kubernetes-json-schema/v{version}.0-local-strict")
    return folder


@cache
def _definitions(version: str) -> "Registry[Any]":
    """Return the types of Kubernetes, to which all schemas refer."""
    contents = json.loads((_schemas(version) / "_definitions.json").read_text(encoding="utf-8"))
    registry: Registry[Any] = Resource.from_contents(contents) @ Registry()
    return registry
