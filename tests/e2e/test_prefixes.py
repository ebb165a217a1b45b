"""A server behind a proxy that adds a prefix to the path: all that names paths for clients has it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.configs import EMBEDDED
from tests.e2e.server import RunningServer, serving
from tests.support.keyring import make_key, write_keys
from tests.support.signing import signed_headers

CONFIG = f'{EMBEDDED}\n[server]\nroot_path = "/llm"\ntrusted_proxies = ["127.0.0.1"]\n'
HTML = {"accept": "text/html"}
FORWARDED = {"x-forwarded-prefix": "/team/llm"}
SIGNED = make_key("search", is_signed=True)


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.extended)], ids=["one", "workers"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(tmp_path_factory.mktemp("prefix"), f"{CONFIG}workers = {request.param}\n") as running:
        yield running.wait_ready()
        running.check_log()


@pytest.mark.parametrize(
    ("path", "headers", "prefix"),
    [("/llm/", {}, "/llm"), ("/llm", {}, "/llm"), ("/", {}, "/llm"), ("/", FORWARDED, "/team/llm")],
    ids=["with a slash", "without", "taken off", "forwarded"],
)
def test_links_have_the_prefix(server: RunningServer, path: str, headers: dict[str, str], prefix: str) -> None:
    get = server.client.get
    links = get(path, headers=headers).json()["links"]
    assert links["models"] == f"{prefix}/models"
    assert f'<base href="{prefix}/">' in get(path, headers=HTML | headers).text
    below = path.rstrip("/")
    assert get(f"{below}/openapi.json", headers=headers).json()["servers"] == [{"url": prefix}]
    docs = get(f"{below}/docs", headers=headers)
    assert (docs.status_code, "'./openapi.json'" in docs.text) == (200, True)


def test_files_of_page_are_below_prefix(server: RunningServer) -> None:
    page = server.client.get("/llm", headers=HTML).text
    script = page.split('<script type="module" src="')[1].split('"')[0]
    assert not script.startswith("/")
    assert server.client.get(f"/llm/{script}").headers["content-type"].startswith("text/javascript")


def test_requests_are_answered_below_prefix(server: RunningServer) -> None:
    body = {"model_name": "digits", "input_data": [0] * 64}
    answers = [server.client.post(f"{prefix}/infer", json=body) for prefix in ("/llm", "")]
    assert [answer.json()["model_name"] for answer in answers] == ["digits", "digits"]
    with openai.OpenAI(base_url=f"{server.url}/llm/v1", api_key="none") as client:
        assert "digits" in [model.id for model in client.models.list()]
    missing = server.client.get("/llm/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert server.client.get("/llm/models/digits").json()["name"] == "digits"


def test_keys_and_signatures_hold_below_prefix(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.toml", SIGNED)
    with serving(tmp_path, f'{CONFIG}[auth]\nmode = "required"\n') as server:
        server.wait_ready()
        get = server.client.get
        assert get("/llm/models").status_code == 401
        assert get("/llm/health/live").status_code == get("/llm/docs").status_code == 200
        assert get("/llm/models", headers=signed_headers(SIGNED.text, "GET", "/llm/models")).status_code == 200
        forwarded = signed_headers(SIGNED.text, "GET", "/team/llm/models") | FORWARDED
        assert get("/models", headers=forwarded).status_code == 200
        wrong = get("/llm/models", headers=signed_headers(SIGNED.text, "GET", "/models"))
        assert wrong.status_code == 401
        server.check_log()


def test_unlisted_client_names_no_prefix(tmp_path: Path) -> None:
    config = CONFIG.replace("127.0.0.1", "192.0.2.1").replace('root_path = "/llm"\n', "")
    with serving(tmp_path, config) as server:
        answer: httpx.Response = server.wait_ready().client.get("/", headers=FORWARDED)
        assert answer.json()["links"]["models"] == "/models"
        server.check_log()
