"""Read Router (also Asym) of sentence-transformers: modules of its own for queries, and others for documents."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json, refuse_unknown
from frameworks.text.sentence_modules.modules import Module, kind_of, read_module, read_modules

_KINDS = ("Router", "Asym")
_MOST = 100
_LONGEST_KEY = 300
_TEXT = "text"
# The prompts of a task, the first one that the files have. Source: SentenceTransformer.encode_query, encode_document.
_PROMPTS = {"query": ("query",), "document": ("document", "passage", "corpus")}
_PARAMETERS = ("allow_empty_key", "default_route", "route_mappings")


@dataclass(frozen=True, slots=True)
class Side:
    """`modules`: those of the route, and those after the Router. `prompt`: None for that of the model's files."""

    modules: tuple[Module, ...]
    prompt: str | None


@dataclass(frozen=True, slots=True)
class Sides:
    """How a model reads documents and queries."""

    documents: Side
    queries: Side


def read_sides(folder: Path) -> Sides | None:
    """Return the sides of a model whose first module is a Router; None for another. Raises InvalidModel."""
    modules = read_modules(folder)
    if not modules or modules[0].kind not in _KINDS:
        return None
    own = modules[0].folder
    file = own / "router_config.json"
    if not file.is_file():
        file = own / "config.json"
    content = read_json(file)
    routes = _routes(file, content)
    stated = content.get("parameters") or {}
    if not isinstance(stated, dict):
        raise InvalidModel(f"{file}: parameters: expected an object, got {str(stated)[:100]}; correct it")
    refuse_unknown(file, stated, _PARAMETERS)
    mappings = _mappings(file, stated.get("route_mappings"), routes)
    prompts = read_json(folder / "config_sentence_transformers.json").get("prompts")
    found = {}
    for task, names in _PROMPTS.items():
        route = _route(task, mappings, routes)
        if route is None:
            raise InvalidModel(
                f"{file}: structure: expected routes for query and document, got {', '.join(routes)[:200]}; "
                "name the routes so"
            )
        prompt = _prompt(prompts if isinstance(prompts, dict) else {}, names)
        found[task] = Side((*routes[route], *modules[1:]), prompt)
    return Sides(found["document"], found["query"])


def _routes(file: Path, content: Mapping[str, Any]) -> dict[str, tuple[Module, ...]]:
    """Return the modules of each route. Raises InvalidModel."""
    types, structure = content.get("types"), content.get("structure")
    if not isinstance(types, dict) or not isinstance(structure, dict) or max(len(types), len(structure)) > _MOST:
        raise InvalidModel(f"{file}: expected types and structure of at most {_MOST} modules; correct the file")
    modules = {}
    for name, kind in types.items():
        if not isinstance(kind, str) or Path(name).is_absolute() or ".." in Path(name).parts:
            raise InvalidModel(f"{file}: types: expected folders within the model's own, got {name[:100]}; correct it")
        modules[name] = read_module(kind_of(kind), file.parent / name)
    routes = {}
    for route, names in structure.items():
        is_list = isinstance(names, list) and 0 < len(names) <= _MOST
        if not is_list or not all(isinstance(name, str) and name in modules for name in names):
            raise InvalidModel(f"{file}: structure: {route[:100]}: expected names of types, got others; correct it")
        routes[route] = tuple(modules[name] for name in names)
    return routes


def _mappings(file: Path, stated: object, routes: Mapping[str, object]) -> dict[object, str]:
    """Return the route of each pair of a task and a modality. Raises InvalidModel."""
    if not stated:
        return {}
    if not isinstance(stated, dict) or len(stated) > _MOST:
        raise InvalidModel(f"{file}: route_mappings: expected an object, got {str(stated)[:100]}; correct it")
    found: dict[object, str] = {}
    for key, route in stated.items():
        try:
            pair = ast.literal_eval(key) if len(key) <= _LONGEST_KEY else None
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            pair = None
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(route, str) or route not in routes:
            raise InvalidModel(
                f"{file}: route_mappings: expected a task, a modality and a route of structure, got {key[:100]}; "
                "correct it"
            )
        # Other modalities are not those of texts alone.
        if isinstance(pair[0], str | None) and isinstance(pair[1], str | None):
            found[pair] = route
    return found


def _route(task: str, mappings: Mapping[object, str], routes: Mapping[str, object]) -> str | None:
    """Return the route of texts for a task, as Router resolves it; None where there is none."""
    for key in ((task, _TEXT), (task, None), (None, _TEXT), (None, None)):
        if key in mappings:
            return mappings[key]
    return next((name for name in (task, _TEXT) if name in routes), None)


def _prompt(prompts: Mapping[str, object], names: tuple[str, ...]) -> str | None:
    name = next((each for each in names if each in prompts), None)
    return None if name is None else str(prompts[name] or "")
