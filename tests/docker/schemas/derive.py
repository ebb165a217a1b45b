"""Derive the schemas of custom resources from Python packages: `python derive.py`, in an environment with them.

    pip install cloudcoil.models.prometheus_operator kubernetes-validate && pip install --no-deps kserve

Both packages are generated from the types of the operators. Neither is needed by a test.
"""

import ast
import json
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DRAFT = "https://json-schema.org/draft/2020-12/schema"
TYPES = "https://kubernetes.io/api/_definitions.json#/$defs/"
META = {"$ref": f"{TYPES}io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
PLAIN = {"str": "string", "bool": "boolean", "int": "integer", "float": "number"}
FOLLOWED = re.compile(
    r"V1alpha1(?!WorkerSpec)\w+|V1beta1(InferenceService|InferenceServiceSpec|PredictorSpec|Model\w+)"
)
"""Types of KServe whose keys are checked. Of the others only that they are objects."""


def service_monitor() -> dict[str, Any]:
    """Return the schema of a ServiceMonitor."""
    model: Any = import_module("cloudcoil.models.prometheus_operator.v1").ServiceMonitor
    found: dict[str, Any] = strict(model.model_json_schema(by_alias=True))
    for name in ("FieldsV1", "ManagedFieldsEntry", "ObjectMeta", "OwnerReference", "Time"):
        found["$defs"].pop(name, None)
    found["properties"] |= {"metadata": META}
    found["properties"].pop("status", None)
    return found | {"required": ["apiVersion", "kind", "metadata", "spec"]}


def strict(schema: Any, is_names: bool = False) -> Any:
    """Return a schema without null, descriptions and unknown keys. `is_names`: its keys are names of properties."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if is_names:
        return {name: strict(each) for name, each in schema.items()}
    kept = {name: each for name, each in schema.items() if name not in ("title", "default", "description")}
    found = {name: strict(each, name in ("properties", "$defs")) for name, each in kept.items()}
    if "properties" in found:
        found["additionalProperties"] = False
    choices = [each for each in found.pop("anyOf", ()) if each != {"type": "null"}]
    if len(choices) > 1:
        return found | {"anyOf": choices}
    return found | (choices[0] if choices else {})


class Kserve:
    """The types of the package kserve, read without importing it and its requirements."""

    def __init__(self) -> None:
        spec = find_spec("kserve")
        (self._folder,) = map(Path, (spec and spec.submodule_search_locations) or ())
        folder = find_spec("kubernetes_validate")
        (validate,) = map(Path, (folder and folder.submodule_search_locations) or ())
        definitions = validate / "kubernetes-json-schema/v1.32.0-local-strict/_definitions.json"
        self._known = json.loads(definitions.read_text(encoding="utf-8"))["$defs"].keys()

    def schema(self, name: str, api: str, *kinds: str) -> dict[str, Any]:
        """Return the schema of a type and of the types that it refers to."""
        found: dict[str, dict[str, Any]] = {}
        missing = [name]
        while missing:
            current = missing.pop()
            found[current], used = self._read(current)
            missing += [each for each in used if each not in found and each not in missing]
        root = found.pop(name)
        root["properties"] |= {"apiVersion": {"const": api}, "kind": {"enum": list(kinds)}}
        del root["properties"]["status"]
        return root | {"required": ["apiVersion", "kind", "metadata", "spec"], "$defs": found}

    def _read(self, name: str) -> tuple[dict[str, Any], list[str]]:
        file = self._folder / f"models/{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name).lower()}.py"
        text = file.read_text(encoding="utf-8")
        tables = dict(self._tables(text))
        names = tables["attribute_map"]
        used = [each for kind in tables["openapi_types"].values() for each in re.findall(r"\w+", kind)]
        properties = {names[key]: self._type(kind) for key, kind in tables["openapi_types"].items()}
        found = {"type": "object", "properties": properties, "additionalProperties": False}
        required = [names[key] for key in re.findall(r"Invalid value for `(\w+)`, must not be `None`", text)]
        return found | ({"required": required} if required else {}), list(filter(FOLLOWED.fullmatch, used))

    @staticmethod
    def _tables(text: str) -> Iterator[tuple[str, dict[str, str]]]:
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and isinstance(node.value, ast.Dict)
            ):
                yield node.targets[0].id, ast.literal_eval(node.value)

    def _type(self, kind: str) -> dict[str, Any]:
        if kind in PLAIN:
            return {"type": PLAIN[kind]}
        if inner := re.fullmatch(r"list\[(.*)\]", kind):
            return {"type": "array", "items": self._type(inner[1])}
        if inner := re.fullmatch(r"dict\(str, (.*)\)", kind):
            return {"type": "object", "additionalProperties": self._type(inner[1])}
        if kind == "V1ObjectMeta":
            return META
        if FOLLOWED.fullmatch(kind):
            return {"$ref": f"#/$defs/{kind}"}
        type_of_kubernetes = f"io.k8s.api.core.v1.{kind.removeprefix('V1')}"
        return {"$ref": TYPES + type_of_kubernetes} if type_of_kubernetes in self._known else {"type": "object"}


def write(kind: str, package: str, schema: dict[str, Any]) -> None:
    """Write the schema of a kind, with its origin."""
    origin = f"{kind}: derived by derive.py from the Python package {package} {version(package)}, Apache-2.0."
    head = {"$schema": DRAFT, "$id": f"https://kubernetes.io/api/{kind.lower()}", "$comment": origin}
    file = HERE / f"{kind.lower()}.json"
    file.write_text(json.dumps(head | schema, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write("ServiceMonitor", "cloudcoil.models.prometheus_operator", service_monitor())
    runtimes = ("ServingRuntime", "ClusterServingRuntime")
    alpha, beta = "serving.kserve.io/v1alpha1", "serving.kserve.io/v1beta1"
    write("ServingRuntime", "kserve", Kserve().schema("V1alpha1ServingRuntime", alpha, *runtimes))
    write("InferenceService", "kserve", Kserve().schema("V1beta1InferenceService", beta, "InferenceService"))
