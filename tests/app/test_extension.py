"""Extensions are found by the names of their folders; the core runs without them, and without their code."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app import extension
from app.auth.permissions import INFER, READ
from app.extension import Extension, extensions, http_access
from frameworks.core.addresses import SourceAddress, parse_address
from frameworks.core.errors import InvalidModel

ROOT = Path(__file__).resolve().parents[2]


def run(folder: Path, code: str) -> str:
    """Run code that imports from this folder alone, beside the installed packages."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {code}"]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def copy_of_core(folder: Path) -> Path:
    for name in ("app", "frameworks", "memory"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "web", "embedded"))
    return folder


def test_each_folder_is_an_extension() -> None:
    folders = [each for each in (ROOT / "extensions").iterdir() if (each / "__init__.py").is_file()]
    assert len(extensions()) == len(folders) > 1


def test_packages_of_extensions_import_no_code() -> None:
    found = run(ROOT, "import app.extension; app.extension.extensions(); print(*sys.modules)").split()
    ours = {each for each in found if each.startswith("extensions.")}
    assert ours == {f"extensions.{each.name}" for each in (ROOT / "extensions").glob("[a-z]*") if each.is_dir()}
    assert not {"app.server", "app.cli", "fastapi", "numpy"} & set(found)


def test_core_without_extensions_has_its_commands(tmp_path: Path) -> None:
    (tmp_path / "extensions").mkdir()
    (tmp_path / "extensions" / "__init__.py").touch()  # hides those that are installed
    shown = run(copy_of_core(tmp_path), "sys.argv = ['roundhouse']; from app.cli import main; main()")
    assert "serve " in shown
    assert "bench " not in shown


def test_folder_adds_command(tmp_path: Path) -> None:
    package = tmp_path / "extensions" / "greeting"
    package.mkdir(parents=True)
    (tmp_path / "extensions" / "__init__.py").touch()
    (package / "__init__.py").write_text(
        "from app.extension import Extension\n"
        "def add(commands):\n"
        "    from app.cli.parser import add_command\n"
        "    add_command(commands, 'greet', 'Greet.', 'roundhouse greet').set_defaults(run=lambda _: print('hello'))\n"
        "EXTENSION = Extension(add_commands=add)\n"
    )
    shown = run(copy_of_core(tmp_path), "sys.argv = ['roundhouse', 'greet']; from app.cli import main; main()")
    assert shown == "hello\n"


PART = """
from app.admin.extension_part import ExtensionPart
from app.admin.metrics.families import gauge
from app.http.routes.responses import json_response
from contextlib import asynccontextmanager
from fastapi import APIRouter

class Part(ExtensionPart):
    health_key, health_description = "greetings", "The state of each greeting."

    def __init__(self, process):
        self.texts = process.loaded.settings.table("greetings", ())
        self.is_running = False

    @asynccontextmanager
    async def running(self):
        self.is_running = True
        yield
        print("stopped")

    def routers(self, parts):
        router = APIRouter()
        router.add_api_route("/greet", self.greet, methods=["GET"])
        return (router,)

    async def greet(self):
        return json_response({"texts": self.texts, "is_running": self.is_running})

    def states(self, principal):
        return {text: "failed" for text in self.texts}

    async def families(self, view):
        return (gauge("greetings", "Greetings.", [], [([], len(self.texts))]),)
"""
PACKAGE_WITH_PART = """
from app.extension import Extension

def tables():
    from typing import Annotated
    from pydantic import Field
    from app.config.tables import ConfigTable
    return (ConfigTable("greetings", Annotated[tuple[str, ...], Field(strict=False)], ()),)

def access():
    from app.auth.permissions import READ
    return {"/greet": {"GET": READ}}

def open_part(process):
    from extensions.greeting.part import Part
    return Part(process)

EXTENSION = Extension(tables=tables, open=open_part, access=access)
"""
ASK = """
from pathlib import Path
from starlette.testclient import TestClient
from app.config import load_settings
from app.server.build import build
server = build(load_settings(None, {}, {"server.grpc_port": 0, "greetings": '["hi", "hello"]'}), "none")
async def app(scope, receive, send):
    await server.app(scope, receive, send)
with TestClient(app, base_url="http://localhost") as client:
    print(client.get("/greet").text)
    print(client.get("/health").json()["greetings"], client.get("/health").json()["status"])
    print([line for line in client.get("/metrics").text.splitlines() if line.startswith("roundhouse_greetings")])
    print("greetings" in client.get("/openapi.json").json()["components"]["schemas"]["Health"]["properties"])
"""


def test_part_adds_table_route_state_and_metric(tmp_path: Path) -> None:
    package = tmp_path / "extensions" / "greeting"
    package.mkdir(parents=True)
    (tmp_path / "extensions" / "__init__.py").touch()
    (package / "__init__.py").write_text(PACKAGE_WITH_PART)
    (package / "part.py").write_text(PART)
    shown = run(copy_of_core(tmp_path), f"exec({ASK!r})").splitlines()
    assert shown[-5:] == [  # behind the lines of the log
        '{"texts":["hi","hello"],"is_running":true}',
        "{'hi': 'failed', 'hello': 'failed'} degraded",
        "['roundhouse_greetings 2.0']",
        "True",
        "stopped",
    ]


def test_permissions_of_extensions_join_those_of_core(monkeypatch: pytest.MonkeyPatch) -> None:
    added = Extension(access=lambda: {"/": {"POST": INFER}, "/greet": {"GET": READ}})
    monkeypatch.setattr(extension, "extensions", lambda: (added,))
    table = http_access()
    assert table["/"] == {"GET": READ, "POST": INFER}
    assert table["/greet"] == {"GET": READ}


def test_second_permission_of_route_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    added = Extension(access=lambda: {"/infer": {"POST": READ}})
    monkeypatch.setattr(extension, "extensions", lambda: (added,))
    with pytest.raises(ValueError, match="/infer: expected one entry of POST, got two"):
        http_access()


def test_scheme_of_extension_opens_its_remote(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[SourceAddress] = []
    added = Extension(sources=lambda: {"https": opened.append})  # type: ignore[dict-item]
    monkeypatch.setattr(extension, "extensions", lambda: (added,))
    extension.open_remote(parse_address("https://host/m"))
    assert [str(each) for each in opened] == ["https://host/m"]


def test_scheme_without_extension_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "extensions", lambda: ())
    with pytest.raises(InvalidModel, match="expected hf://, got https://"):
        extension.open_remote(parse_address("https://host/m"))
