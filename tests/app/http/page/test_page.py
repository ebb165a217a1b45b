"""The web page and its files, in this process and on a server with keys."""

import asyncio
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.auth.key_store import KeyStore
from app.config import AuthSettings, LoadedSettings, Settings
from app.http.page import files as web_files
from app.http.page.files import WebSite
from app.server.build import Host, build
from tests.support.fake_probe import FakeProbe

Get = Callable[..., httpx.Response]
HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
SCRIPT = b"export const text = 'a';\n" * 100
WASM = bytes(range(256)) * 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "web"
    (folder / "lib").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("hidden")
    (folder / "index.html").write_text('<script type="module" src="{{base}}/main.js"></script>')
    (folder / "main.js").write_bytes(SCRIPT)
    (folder / "lib" / "large.wasm").write_bytes(WASM)
    (tmp_path / "secret.txt").write_text("kept apart")
    return folder


@pytest.fixture
def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> WebSite:
    monkeypatch.setattr(web_files, "_LARGE_BYTES", 4096)
    site = WebSite.read(folder)
    assert site is not None
    return site


@pytest.fixture(params=["off", "required"])
def get(request: pytest.FixtureRequest, site: WebSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Get:
    """Send a request without a key, to a server without keys and to one that requires them."""
    monkeypatch.setattr("app.server.build.read_site", lambda _: site)
    settings = Settings(auth=AuthSettings(mode=request.param))
    keys = KeyStore(tmp_path / "keys.toml", settings.auth)
    server = build(LoadedSettings(settings, Path.cwd()), "none", Host(FakeProbe()), keys=keys)

    def send(path: str, method: str = "GET", **headers: str) -> httpx.Response:
        async def call() -> httpx.Response:
            transport = httpx.ASGITransport(server.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})

        return asyncio.run(call())

    return send


def test_page_names_hashed_files(get: Get, site: WebSite) -> None:
    page = get("/", **HTML)
    assert page.status_code == 200
    assert page.text == f'<script type="module" src="{site.base[1:]}/main.js"></script>'
    assert page.headers["cache-control"] == "no-cache"
    assert "x-request-id" in page.headers


@pytest.mark.parametrize("path", ["/", "main.js", "lib/large.wasm"])
def test_response_has_security_headers(get: Get, site: WebSite, path: str) -> None:
    headers = get(path if path == "/" else f"{site.base}/{path}", **HTML).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert policy["connect-src"] == "'self'"
    assert not any("unsafe-inline" in sources or "http" in sources or "*" in sources for sources in policy.values())
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-embedder-policy"] == "require-corp"


def test_file_is_cached_for_ever(get: Get, site: WebSite) -> None:
    file = get(f"{site.base}/main.js")
    assert file.status_code == 200
    assert file.content == SCRIPT
    assert file.headers["content-type"].startswith("text/javascript")
    assert file.headers["cache-control"] == "public, max-age=31536000, immutable"


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("br, GZIP;q=0.5", "gzip"),
        ("*", "gzip"),
        ("gzip;q=0", None),
        ("gzip;q=0.0", None),
        ("br", None),
    ],
)
def test_encoding_follows_the_header(get: Get, site: WebSite, accepted: str, encoding: str | None) -> None:
    response = get(f"{site.base}/main.js", accept_encoding=accepted)
    assert response.headers.get("content-encoding") == encoding
    assert response.content == SCRIPT
    if encoding:
        assert int(response.headers["content-length"]) == len(gzip.compress(SCRIPT, mtime=0)) < len(SCRIPT)


def test_linked_folder_adds_only_its_files(folder: Path, tmp_path: Path) -> None:
    manual = tmp_path / "docs"
    (manual / "images").mkdir(parents=True)
    (manual / "images" / "page.png").write_bytes(b"picture")
    (manual / "index.md").write_text("# Manual")
    (manual / "circle").symlink_to(folder)
    (folder / "manual").symlink_to("../docs")
    site = WebSite.read(folder)
    assert site is not None
    assert site.files.keys() == {"main.js", "lib/large.wasm", "manual/index.md"}
    assert site.files["manual/index.md"].content == b"# Manual"


def test_large_file_is_read_from_disk(get: Get, site: WebSite) -> None:
    found = site.find(f"{site.base}/lib/large.wasm")
    assert found is not None
    assert found.content is None
    response = get(f"{site.base}/lib/large.wasm", accept_encoding="gzip")
    assert response.content == WASM
    assert response.headers["content-type"] == "application/wasm"
    part = get(f"{site.base}/lib/large.wasm", range="bytes=256-511")
    assert (part.status_code, part.content) == (206, bytes(range(256)))


@pytest.mark.parametrize("path", ["/", "/main.js", "/lib/large.wasm"])
def test_known_etag_is_304(get: Get, site: WebSite, path: str) -> None:
    url = path if path == "/" else site.base + path
    first = get(url, **HTML)
    again = get(url, if_none_match=f'"other", W/{first.headers["etag"]}', **HTML)
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert get(url, if_none_match='"other"', **HTML).status_code == 200


@pytest.mark.parametrize("path", ["/", "/main.js", "/lib/large.wasm"])
def test_head_has_the_same_headers(get: Get, site: WebSite, path: str) -> None:
    url = path if path == "/" else site.base + path
    head, whole = get(url, "HEAD", **HTML), get(url, **HTML)
    assert head.status_code == 200
    for name in ("content-type", "content-length", "etag", "cache-control"):
        assert head.headers[name] == whole.headers[name]


@pytest.mark.parametrize(
    "path",
    [
        "/web/0123456789abcdef/main.js", "{base}/", "{base}/absent.js", "{base}/index.html", "{base}/.git/config",
        "{base}/../../secret.txt", "{base}/%2e%2e/%2e%2e/secret.txt", "{base}/..%2f..%2fsecret.txt", "{base}//main.js",
        "{base}/lib/..%2fmain.js", "{base}/main.js%00", "{base}/" + "a" * 5000, "/web/main.js",
    ],
)  # fmt: skip
def test_other_paths_are_404(get: Get, site: WebSite, path: str) -> None:
    response = get(path.replace("{base}", site.base))
    assert response.status_code in (404, 401)
    # A path that the client has shortened is no longer below /web.
    assert response.status_code == 404 or not str(response.url.path).startswith("/web/")
    assert b"kept apart" not in response.content


def test_other_methods_are_refused(get: Get, site: WebSite) -> None:
    response = get(f"{site.base}/main.js", "POST")
    assert response.status_code in (401, 405)
    assert response.status_code == 401 or response.headers["allow"] == "GET, HEAD"


def test_other_routes_keep_their_scope(get: Get) -> None:
    statuses = {path: get(path).status_code for path in ("/", "/models", "/metrics", "/web")}
    assert statuses in ({"/": 200, "/models": 200, "/metrics": 200, "/web": 404}, dict.fromkeys(statuses, 401))
    assert get("/docs").status_code == 200


def test_index_without_html_is_json(get: Get) -> None:
    response = get("/", accept="application/json")
    assert response.status_code == 401 or response.json()["name"] == "roundhouse"


def test_any_change_makes_another_hash(folder: Path, site: WebSite) -> None:
    (folder / "lib" / "large.wasm").write_bytes(WASM[::-1])
    changed = WebSite.read(folder)
    assert changed is not None
    assert changed.base != site.base
    assert WebSite.read(folder) == changed


def test_folder_without_page_is_none(tmp_path: Path) -> None:
    assert WebSite.read(tmp_path) is None
    assert WebSite.read(tmp_path / "absent") is None


def test_page_switched_off_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(web_files, "WEB_FOLDER", folder)
    settings: Any = {"server": {"web": False}}
    server = build(LoadedSettings(Settings.model_validate(settings), tmp_path), "none", Host(FakeProbe()))

    async def call() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app), base_url="http://test") as client:
            return await client.get("/", headers=HTML)

    assert asyncio.run(call()).json()["name"] == "roundhouse"
