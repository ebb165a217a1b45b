"""The modules of the page import each other without a circle: each loads after those that it needs."""

import re
from graphlib import TopologicalSorter
from pathlib import Path

PAGE = Path(__file__).parents[2] / "app" / "web"
_OWN = re.compile(r'^(?:import|export)[^"]* from "(\.[^"]+)";', re.MULTILINE)
"""Imports of a module as it loads. `import()` in a function runs later."""


def imports_of_modules() -> dict[Path, set[Path]]:
    """Return each module of the page, without the libraries of others, and those that it imports."""
    folders = ("browser", "components", "lib", "playground", "views")
    files = [*PAGE.glob("*.js"), *(file for folder in folders for file in (PAGE / folder).rglob("*.js"))]
    return {
        file: {(file.parent / path).resolve() for path in _OWN.findall(file.read_text(encoding="utf-8"))}
        for file in files
    }


def test_page_modules_import_without_circle() -> None:
    imports = imports_of_modules()
    assert sum(map(len, imports.values())) > 100
    order = list(TopologicalSorter(imports).static_order())
    assert all(file.is_file() for file in order)
