"""GET / and GET /docs, in this process."""

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from app import server_version
from app.admin.pages import LINKS
from app.config import LoadedSettings, Settings
from app.server.build import build


def request(method: str, path: str) -> httpx.Response:
    """Send one request to a server without models."""
    server = build(LoadedSettings(Settings(), Path.cwd()), "none")

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(server.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path)

    return asyncio.run(call())


def test_index_names_version_and_links() -> None:
    response = request("GET", "/")
    assert response.status_code == 200
    assert response.json() == {"name": "roundhouse", "version": server_version(), "links": LINKS}


@pytest.mark.parametrize("path", ["/", "/docs", "/docs/swagger-ui-bundle.js"])
def test_page_answers_head(path: str) -> None:
    response = request("HEAD", path)
    assert response.status_code == 200
    assert response.headers["content-type"] == request("GET", path).headers["content-type"]


@pytest.mark.parametrize("file", ["redoc.standalone.js", "..%2fcore.py", "%2e%2e", "__init__.py"])
def test_docs_refuses_other_files(file: str) -> None:
    response = request("GET", f"/docs/{file}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(("path", "allowed"), [("/", "GET, HEAD, POST"), ("/docs", "GET, HEAD")])
def test_page_refuses_other_methods(path: str, allowed: str) -> None:
    response = request("PUT", path)
    assert response.status_code == 405
    assert response.headers["allow"] == allowed


def test_pages_never_import_package() -> None:
    code = "import sys, app.admin.pages as p; p._static_folder(); sys.exit('fastapi_offline' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
