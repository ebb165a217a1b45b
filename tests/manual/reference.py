"""Write the generated parts of the manual: configuration keys, errors, metrics, scopes, the tree of the code,
and the figures of the README.

`python -m tests.manual.reference` rewrites them in docs/ and README.md, and the list of pages in the web page; a test
compares them with the code.
"""

import ast
import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import app.protocols.shared.errors as wire_errors
from app.auth.permissions import GRPC_ACCESS
from app.auth.principal import Scope
from app.config.auth_settings import TenantSettings
from app.config.loading import settings_class
from app.extension import http_access
from extensions.pipelines.settings import PipelineEntry, StepEntry
from extensions.ray.settings import RayGroupSettings
from extensions.search.settings import CollectionEntry
from frameworks.core.errors import RoundhouseError
from frameworks.core.settings.adapters import AdapterEntry
from frameworks.core.settings.entries import ModelEntry, OnnxModelEntry, TorchModelEntry
from frameworks.core.settings.images import ImageSettings
from frameworks.core.settings.states import StateEntry
from frameworks.tasks.architectures import _BY_NAME, _BY_SUFFIX, NOT_SERVED, OTHER_NAMES
from frameworks.tasks.table import TASKS
from frameworks.tasks.types import TaskParameter
from memory.sizes import format_size, parse_size
from tests.manual.scrape import metric_families

HTTP_ACCESS = http_access()

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PACKAGES = ("app", "extensions", "frameworks", "memory")
PAGE_LIST = ROOT / "app" / "web" / "lib" / "manual-pages.js"
"""The module of the web page that lists the pages of the manual."""

_TYPES_WITHOUT_SCHEMA = {
    "adapters": "list of tables",
    "initial": "number or nested lists",
    "state": '`"auto"` or list of tables',
    "crop": "integer or list of two integers",
    "image": "table",
    "labels": "list of strings, or a file name",
    "mean": "list of three numbers",
    "inputs": "list of names, or table",
    "outputs": "table",
    "version_policy": "string or list of integers",
    "pad_values": "table of numbers",
    "replicas": "integer or table",
    "score_tokens": "list of two strings",
    "size": "integer or list of two integers",
    "std": "list of three numbers",
    "warm_up": "list of tables of values",
}
_TYPES_OF_STEPS = {"inputs": "table", "outputs": "table", "size": "list of two integers", "filter": "table"}
_LARGEST_COUNT = 2**31 - 1


def configuration() -> str:
    """Return one table for each table of config.toml, from the settings classes and the docstrings of their fields."""
    tables: list[tuple[str, type[BaseModel], set[str]]] = []
    fields = list(settings_class().model_fields.items())
    fields.sort(key=lambda each: "" if inspect.isclass(each[1].annotation) else each[0])  # lists of tables last
    for name, field in fields:
        if name == "collections":
            tables.append(("[[collections]]", CollectionEntry, set()))
            continue
        table = field.annotation
        if name == "pipelines":
            tables.append(("[[pipelines]]", PipelineEntry, {"steps"}))
            tables.append(("[[pipelines.steps]]", StepEntry, set()))
            continue
        assert isinstance(table, type)
        assert issubclass(table, BaseModel)
        tables.append((f"[{name}]", table, {"onnx_models", "torch_models", "tenants", "groups"}))
        if name == "models":
            shared = set(ModelEntry.model_fields)
            tables.append(("[[models.onnx_models]] and [[models.torch_models]]", ModelEntry, set()))
            tables.append(("only [[models.onnx_models]]", OnnxModelEntry, shared))
            tables.append(("[models.onnx_models.image]", ImageSettings, set()))
            tables.append(("[[models.onnx_models.state]]", StateEntry, set()))
            tables.append(("only [[models.torch_models]]", TorchModelEntry, shared))
            tables.append(("[[models.torch_models.adapters]]", AdapterEntry, set()))
        if name == "auth":
            tables.append(("[[auth.tenants]]", TenantSettings, set()))
        if name == "ray":
            tables.append(("[[ray.groups]]", RayGroupSettings, set()))
    return "\n\n".join(_settings_table(*table) for table in tables)


def errors() -> str:
    """Return the table of statuses and codes, from the table that maps errors to HTTP and gRPC."""
    codes: dict[tuple[int, str, str], list[str]] = {}
    for error, status, code, grpc_code in wire_errors._TABLE:
        codes.setdefault((status, code, grpc_code), []).append(_first_sentence(error))
    gone = (wire_errors.STATUS_CLIENT_GONE, "", "")
    codes[gone] = [_first_sentence(wire_errors.ClientGone)]
    codes[500, "internal", "INTERNAL"] = ["A fault of the server; the log has the traceback under the request id."]
    rows = [
        f"| {status} | {_code(code)} | {_code(grpc_code)} | {' '.join(meanings)} |"
        for (status, code, grpc_code), meanings in sorted(codes.items())
    ]
    return "\n".join(["| status | code | gRPC status | meaning |", "|---|---|---|---|", *rows])


def error_tree() -> str:
    """Return the tree of error classes with the first sentence of each."""
    return "\n".join(["```text", *_tree_lines(RoundhouseError, ""), "```"])


def metrics() -> str:
    """Return the table of metrics, from the families that `GET /metrics` writes."""
    rows = [
        f"| `{family.name}{'_total' if family.type == 'counter' else ''}` | {family.type} "
        f"| {', '.join(_code(label) for label in family._labelnames)} | {_cell(family.documentation)} |"
        for family in sorted(metric_families(), key=lambda family: str(family.name))
    ]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows])


def tree() -> str:
    """Return the packages with the first sentence of their docstrings, and the names of their modules."""
    lines = []
    for init in sorted(path for top in PACKAGES for path in (ROOT / top).rglob("__init__.py")):
        folder = init.parent
        depth = len(folder.relative_to(ROOT).parts) - 1
        indent = "  " * depth
        doc = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        lines.append(f"{indent + folder.name + '/':26}{' '.join(doc.split(chr(10) * 2)[0].split())}")
        modules = " ".join(sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")))
        lines += textwrap.wrap(modules, 118, initial_indent=indent + "    ", subsequent_indent=indent + "    ")
    return "\n".join(["```text", *lines, "```"])


def layers() -> str:
    """Return the layers and the independent packages of the import contracts in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    rows = []
    for contract in project["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            within = ", ".join(f"`{name}`" for name in contract.get("containers", ())) or "the project"
            ordered = [
                ", ".join(f"`{each}`" for each in layer.replace("|", " ").split()) for layer in contract["layers"]
            ]
            rows.append(f"| {within} | {' → '.join(ordered)} |")
        elif contract["type"] == "independence":
            names = sorted(contract["modules"])
            within = names[0].rpartition(".")[0].replace(".", "/")
            rows.append(
                f"| `{within}` | {', '.join(_code(name.rpartition('.')[2]) for name in names)} are independent |"
            )
    return "\n".join(["| within | layers, top to bottom |", "|---|---|", *rows])


def access() -> str:
    """Return the table of the scope that each route and each gRPC method needs."""
    needs = [
        (f"{method} {path}", each.scope) for path, methods in HTTP_ACCESS.items() for method, each in methods.items()
    ]
    needs += [(path.removeprefix("/"), each.scope) for path, each in GRPC_ACCESS.items()]
    rows = [
        f"| {_code(scope or '') or 'no key'} | {', '.join(_code(name) for name, needed in needs if needed == scope)} |"
        for scope in (None, *Scope)
    ]
    return "\n".join(["| scope | routes and gRPC methods |", "|---|---|", *rows])


def vision() -> str:
    """Return the table of transformers' model types that read images and generate text."""
    # Makers of models need torch and transformers.
    from frameworks.generation.image_text_models import NOT_SERVED as OTHERS
    from tests.support.models.vision.catalogue import (
        BY_CACHES,
        MAKERS,
        MODEL_TYPES,
        NEEDS_TORCHVISION,
        NOT_BUILT,
        READ_VIDEOS,
        REFUSED,
    )

    served = MAKERS.keys() - REFUSED.keys()
    reasons: dict[str, list[str]] = {}
    for name in sorted(MODEL_TYPES.keys() - served - NEEDS_TORCHVISION):
        reason = OTHERS.get(MODEL_TYPES[name]) or REFUSED.get(name) or NOT_BUILT[name]
        reasons.setdefault(reason, []).append(name)
    rows = [
        ("paged attention", served - BY_CACHES),
        ("transformers' own caches", BY_CACHES),
        (
            "where torchvision is installed beside the server; most with transformers' own caches",
            frozenset(NEEDS_TORCHVISION),
        ),
        ("with videos, where torchvision is installed", READ_VIDEOS),
    ]
    lines = ["| path | model types |", "|---|---|"]
    lines += [f"| {path} ({len(names)}) | {_joined(names)} |" for path, names in rows]
    lines += [f"| not served: {reason} | {_joined(names)} |" for reason, names in reasons.items()]
    return "\n".join(lines)


def _joined(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def tasks() -> str:
    """Return the table of the tasks that are served, with their inputs, parameters and classes."""
    ends: dict[str, list[str]] = {}
    for end, named in (*_BY_SUFFIX.items(), *_BY_NAME.items()):
        for each in named if end not in NOT_SERVED else ():
            ends.setdefault(each, []).append(end if end in _BY_NAME else f"…{end}")
    rows = []
    for name in sorted(TASKS.keys() - OTHER_NAMES.keys()):
        task = TASKS[name]
        fields = ", ".join(_code(each) for each in task.reads)
        parameters = ", ".join(_parameter(each) for each in task.parameters)
        rows.append(f"| `{name}` | {fields} | {parameters} | {', '.join(_code(end) for end in ends[name])} |")
    return "\n".join(["| task | reads | parameters (default) | classes |", "|---|---|---|---|", *rows])


def _parameter(parameter: TaskParameter) -> str:
    default = "required" if parameter.required else json.dumps(parameter.default, ensure_ascii=False)
    absent = "none" if parameter.type == "numbers" else "the model decides"
    return f"`{parameter.name}` ({absent if default == 'null' else default})"


def figures() -> str:
    """Return the date, the machine and the table beside other servers of the page of benchmarks."""
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    section = page.partition("## Beside other servers\n")[2].partition("\n## ")[0].strip()
    measured, _, table = section.partition("\n\n")
    return f"{measured.partition('. ')[0]}.\n\n{table}"


PARTS: Mapping[str, tuple[str, Callable[[], str]]] = {
    "configuration": ("configuration.md", configuration),
    "errors": ("errors.md", errors),
    "error-tree": ("errors.md", error_tree),
    "metrics": ("metrics.md", metrics),
    "access": ("security.md", access),
    "layers": ("architecture.md", layers),
    "tree": ("architecture.md", tree),
    "tasks": ("tasks.md", tasks),
    "vision": ("vision.md", vision),
    "figures": ("../README.md", figures),
}
"""Name of each generated part -> its page and the function that writes it."""


def replaced(page: str, part: str, text: str) -> str:
    """Return the page with the text between the marks of a part. Raises ValueError if the marks are missing."""
    begin, end = f"<!-- generated: {part} -->\n", f"\n<!-- end: {part} -->"
    head, found, rest = page.partition(begin)
    _, found_end, tail = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"the marks of {part} are missing")
    return f"{head}{begin}\n{text}\n{end}{tail}"


def field_docstrings(settings: type[BaseModel]) -> dict[str, str]:
    """Return the docstring below each field of a class, base classes included, as one line."""
    texts: dict[str, str] = {}
    for each in reversed(settings.__mro__):
        if not issubclass(each, BaseModel) or each is BaseModel:
            continue
        (defined,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(defined, ast.ClassDef)
        for field, docstring in zip(defined.body, defined.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(docstring, ast.Expr):
                assert isinstance(field.target, ast.Name)
                assert isinstance(docstring.value, ast.Constant)
                texts[field.target.id] = " ".join(str(docstring.value.value).split())
    return {name: text for name, text in texts.items() if name in settings.model_fields}


def _settings_table(title: str, settings: type[BaseModel], omitted: set[str]) -> str:
    schema = settings.model_json_schema()["properties"]
    texts = field_docstrings(settings)
    rows = []
    for name, field in settings.model_fields.items():
        if name not in omitted:
            meaning, default_text = _split_default(texts[name])
            known = _TYPES_OF_STEPS if settings is StepEntry else _TYPES_WITHOUT_SCHEMA
            kind = known.get(name) or _type(schema[name], field)
            rows.append(f"| `{name}` | {kind} | {_default(field, default_text)} | {_cell(meaning)} |")
    head = f"### `{title}`" if title.startswith("[") and " " not in title else f"### {_code_tables(title)}"
    return "\n".join(
        [head, "", "| key | type | default | meaning |", "|---|---|---|---|", *rows, *_old_names(settings)]
    )


def _old_names(settings: type[BaseModel]) -> list[str]:
    names: Mapping[str, str] = getattr(settings, "deprecated_keys", {})
    listed = ", ".join(f"`{old}` for `{name}`" for old, name in names.items())
    return ["", f"Old names, accepted with a warning: {listed}."] if listed else []


def _code_tables(title: str) -> str:
    return re.sub(r"\[\[[\w.]+\]\]", lambda match: f"`{match[0]}`", title)


def _split_default(docstring: str) -> tuple[str, str]:
    """Split "Meaning. None: default." into the meaning and the text of the default."""
    meaning, _, default = docstring.partition("None: ")
    return meaning.strip(), default.removesuffix(".")


def _type(schema: Mapping[str, Any], field: FieldInfo) -> str:
    if _is_size(field):
        return "size"
    options = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    return " or ".join(_simple_type(each) for each in options)


def _simple_type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(f'`"{each}"`' for each in schema["enum"])
    if "const" in schema:
        return f'`"{schema["const"]}"`'
    if schema["type"] == "array":
        return f"list of: {_simple_type(schema['items'])}"
    if schema.get("format") == "path":
        return "path"
    return f"{schema['type']}{_range(schema)}"


def _range(schema: Mapping[str, Any]) -> str:
    low, above, high = schema.get("minimum"), schema.get("exclusiveMinimum"), schema.get("maximum")
    high = None if high == _LARGEST_COUNT else high
    if low is not None and high is not None:
        return f", {low:,} to {high:,}"
    parts = [f"> {above}"] if above is not None else [f"≥ {low}"] if low is not None else []
    parts += [f"≤ {high}"] if high is not None else []
    return "".join(f", {part}" for part in parts)


def _is_size(field: FieldInfo) -> bool:
    seen: list[Any] = [field.annotation, *field.metadata]
    while seen:
        each = seen.pop()
        if getattr(each, "func", None) is parse_size:
            return True
        seen += [*get_args(each), *getattr(each, "__metadata__", ())]
    return False


def _default(field: FieldInfo, text: str) -> str:
    value = field.default
    if field.is_required():
        return "required"
    if value is None or field.default_factory is not None:
        return _cell(text) or "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`[{', '.join(_quoted(each) for each in value)}]`"
    if _is_size(field):
        return f'`"{format_size(value).replace(" ", "")}"`'
    return f"`{_quoted(value)}`"


def _quoted(value: object) -> str:
    if isinstance(value, Path):
        return f'"./{value}"'
    return f'"{value}"' if isinstance(value, str) else str(value)


def _first_sentence(error: type[BaseException]) -> str:
    text = " ".join((error.__doc__ or "").split())
    return _cell(re.split(r"(?<=[.;]) ", text)[0].rstrip(";.") + ".")


def _tree_lines(error: type[RoundhouseError], indent: str) -> Iterator[str]:
    yield f"{indent + error.__name__:32}{_first_sentence(error)}"
    for each in error.__subclasses__():
        if each.__module__ in ("frameworks.core.errors", "app.auth.errors", "app.protocols.shared.errors"):
            yield from _tree_lines(each, indent + "  ")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page_list() -> str:
    """Return the module that lists the pages of the manual, in the order of mkdocs.yml."""
    sections: list[dict[str, Any]] = [{"title": "", "pages": []}]
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    for title, page in re.findall(r"^ +- ([^:\n]+):(?: ([\w-]+)\.md)?$", nav, flags=re.MULTILINE):
        if page:
            sections[-1]["pages"].append([page, title])
        else:
            sections.append({"title": title, "pages": []})
    head = "// Generated from mkdocs.yml by tests/manual/reference.py: the pages of the manual as [name, title].\n"
    return f"{head}export const SECTIONS = [\n{''.join(f'  {json.dumps(each)},{chr(10)}' for each in sections)}];\n"


def main() -> None:
    """Rewrite the generated parts of all pages, and the list of the pages."""
    PAGE_LIST.write_text(page_list(), encoding="utf-8")
    for part, (name, write) in PARTS.items():
        page = DOCS / name
        page.write_text(replaced(page.read_text(encoding="utf-8"), part, write()), encoding="utf-8")


if __name__ == "__main__":
    main()
