"""Names with a slash, over every route: plain or as %2F in a path, and for keys whose patterns have a slash."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from app.config import LoadedSettings, load_settings
from app.server.build import Host, build
from tests.support.fake_probe import FakeProbe
from tests.support.keyring import MadeKey, make_key, write_keys
from tests.support.loops import in_loop, soon
from tests.support.models.onnx_graphs import identity, save

NAME = "org/vector"
SPELLINGS = (NAME, "org%2Fvector")
ASKED = {"input_data": [1.0, 2.0]}
OIP = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}]}


def settings_of(folder: Path, more: str = "") -> LoadedSettings:
    """Return the settings of a server with one model."""
    save(identity(), folder / "model.onnx")
    config = folder / "config.toml"
    entry = f'[[models.onnx_models]]\nname = "{NAME}"\npath = "{folder / "model.onnx"}"\n'
    config.write_text(f'{entry}{more}\n[models]\nroots = ["{folder}"]\n', encoding="utf-8")
    return load_settings(config, {})


@asynccontextmanager
async def client_of(loaded: LoadedSettings) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the settings in this process, with all models loaded."""
    server = build(loaded, "none", Host(FakeProbe()))
    admin: Any = server.app._admin
    application = admin._app  # below the middleware
    async with application.lifespan():
        await soon(lambda: server.lifecycle.is_ready)
        transport = httpx.ASGITransport(server.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client


async def answer(client: httpx.AsyncClient, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    response = await client.request(method, path, json=body)
    assert response.status_code == status, response.text
    return response.json()


@in_loop
async def test_slash_in_path_names_model(tmp_path: Path) -> None:
    async with client_of(settings_of(tmp_path)) as client:
        for name in SPELLINGS:
            for path in (f"/models/{name}/infer", f"/models/{name}/versions/1/infer"):
                answered = await answer(client, "POST", path, ASKED)
                assert (answered["model_name"], answered["output_data"]) == (NAME, [1.0, 2.0])
            for path in (f"/v2/models/{name}/infer", f"/v2/models/{name}/versions/1/infer"):
                assert (await answer(client, "POST", path, OIP))["model_name"] == NAME
            assert (await answer(client, "GET", f"/v1/models/{name}"))["id"] == NAME
            for path in ("", "/config", "/versions/1", "/versions/1/config"):
                assert (await answer(client, "GET", f"/v2/models/{name}{path}"))["name"] == NAME
            assert (await answer(client, "GET", f"/v2/models/{name}/stats"))["model_stats"][0]["name"] == NAME
            assert (await client.get(f"/v2/models/{name}/ready")).status_code == 200
        assert (await answer(client, "POST", "/infer", ASKED | {"model_name": NAME}))["model_name"] == NAME
        lines = (await client.get("/metrics")).text.splitlines()
        assert any(line.startswith("roundhouse_requests_total{") and f'model="{NAME}"' in line for line in lines)
        assert (await answer(client, "GET", "/health"))["models"] == {NAME: "ready"}


@in_loop
async def test_slash_in_path_changes_model(tmp_path: Path) -> None:
    async with client_of(settings_of(tmp_path)) as client:
        for name in SPELLINGS:
            path = f"/models/{name}"
            assert (await answer(client, "POST", f"{path}/unload"))["state"] == "unloaded"
            assert (await answer(client, "POST", f"{path}/load"))["name"] == NAME
            await answer(client, "POST", f"/v2/repository{path}/unload")
            await answer(client, "POST", f"/v2/repository{path}/load")
            for method, more, status, found in (
                ("POST", "/rollback", 404, 'has no version "before"'), ("GET", "/files", 403, "downloadable"),
                ("GET", "/files/a/b", 403, "downloadable"), ("DELETE", "/adapters/a", 404, 'has no adapter "a"'),
            ):  # fmt: skip
                error = (await answer(client, method, f"{path}{more}", status=status))["error"]
                assert f'model "{NAME}"' in error["message"]
                assert found in error["message"]
            assert await answer(client, "DELETE", path) == {"deleted": NAME}
            body = {"framework": "onnx", "name": NAME, "path": str(tmp_path / "model.onnx")}
            assert (await answer(client, "POST", "/models", body, 201))["name"] == NAME


@in_loop
async def test_alias_answers_as_model(tmp_path: Path) -> None:
    async with client_of(settings_of(tmp_path, 'aliases = ["gpt-4o-mini", "other/vector"]\ncache = true')) as client:
        for alias in ("gpt-4o-mini", "other/vector"):
            for path, body in ((f"/models/{alias}/infer", ASKED), ("/infer", ASKED | {"model_name": alias})):
                answered = await answer(client, "POST", path, body)
                assert (answered["model_name"], answered["output_data"]) == (alias, [1.0, 2.0])
            assert (await answer(client, "POST", f"/v2/models/{alias}/infer", OIP))["model_name"] == alias
        assert (await answer(client, "POST", "/infer", ASKED | {"model_name": NAME}))["model_name"] == NAME
        described = await answer(client, "GET", "/models/gpt-4o-mini")
        assert (described["name"], described["aliases"]) == (NAME, ["gpt-4o-mini", "other/vector"])
        assert described["requests"]["total"] == 7
        metrics = (await client.get("/metrics")).text
        assert f'model="{NAME}"' in metrics
        assert "gpt-4o-mini" not in metrics
        assert len((await answer(client, "GET", "/models"))["models"]) == 1


@in_loop
async def test_alias_is_listed_with_root(tmp_path: Path) -> None:
    async with client_of(settings_of(tmp_path, 'aliases = ["gpt-4o-mini"]')) as client:
        listed = (await answer(client, "GET", "/v1/models"))["data"]
        assert [(each["id"], each.get("root"), each.get("parent")) for each in listed] == [
            (NAME, None, None), ("gpt-4o-mini", NAME, None),
        ]  # fmt: skip
        assert await answer(client, "GET", "/v1/models/gpt-4o-mini") == listed[1]
        error = (await answer(client, "GET", "/models/GPT-4o-mini", status=404))["error"]
        assert error["message"].endswith('did you mean "gpt-4o-mini"?')


@in_loop
async def test_step_names_model_by_alias(tmp_path: Path) -> None:
    steps = """
[[pipelines]]
name = "org/odds"
aliases = ["chances"]
inputs = ["x"]
outputs = { y = "run.y" }
[[pipelines.steps]]
name = "run"
model = "gpt/4o"
inputs = { x = "x" }
"""
    async with client_of(settings_of(tmp_path, 'aliases = ["gpt/4o"]\n' + steps)) as client:
        for name in ("org/odds", "chances"):
            answered = await answer(client, "POST", f"/models/{name}/infer", {"inputs": {"x": [1.0, 2.0]}})
            assert (answered["model_name"], answered["outputs"]["y"]["data"]) == (name, [1.0, 2.0])
        await answer(client, "POST", "/models/gpt/4o/unload")
        error = (await answer(client, "POST", "/models/chances/infer", {"inputs": {"x": [1.0]}}, 503))["error"]
        assert error["message"] == 'step "run": its model was unloaded; ask an operator to load it'


@in_loop
async def test_alias_changes_model(tmp_path: Path) -> None:
    async with client_of(settings_of(tmp_path, 'aliases = ["short"]')) as client:
        assert (await answer(client, "POST", "/models/short/unload"))["name"] == NAME
        assert (await answer(client, "POST", "/models/short/load"))["state"] == "ready"
        for body in ({"name": "short"}, {"name": "new", "aliases": ["short"]}, {"name": "new", "aliases": [NAME]}):
            body |= {"framework": "onnx", "path": str(tmp_path / "model.onnx")}
            assert (await answer(client, "POST", "/models", body, 409))["error"]["code"] == "model_exists"
        assert await answer(client, "DELETE", "/models/short") == {"deleted": NAME}
        assert (await answer(client, "GET", "/models"))["models"] == []
        body = {"framework": "onnx", "name": "short", "aliases": [NAME], "path": str(tmp_path / "model.onnx")}
        assert (await answer(client, "POST", "/models", body, 201))["aliases"] == [NAME]
        assert (await answer(client, "GET", f"/models/{NAME}"))["name"] == "short"


@in_loop
async def test_alias_of_hidden_model_is_absent(tmp_path: Path) -> None:
    key, other = make_key("t", models=("mine", "org/*")), make_key("t", models=("mine",))
    async with client_of(keyed(tmp_path, key, other, more='aliases = ["mine"]\n')) as client:
        assert (await client.post("/models/mine/infer", json=ASKED, headers=key.headers)).status_code == 200
        for method, path, body in (
            ("POST", "/models/mine/infer", ASKED), ("POST", "/infer", ASKED | {"model_name": "mine"}),
            ("GET", "/models/mine", None), ("GET", "/v1/models/mine", None),
        ):  # fmt: skip
            response = await client.request(method, path, json=body, headers=other.headers)
            assert response.status_code == 404
            assert NAME not in response.text
        for path in ("/models", "/v1/models", "/health", "/metrics"):
            assert '"mine"' not in (await client.get(path, headers=other.headers)).text


@in_loop
async def test_absent_name_gets_meant_one(tmp_path: Path) -> None:
    async with client_of(settings_of(tmp_path)) as client:
        for name in ("vector", "ORG/Vector", "other/vector"):
            for method, path, body in (
                ("GET", f"/models/{name}", None), ("POST", f"/models/{name}/infer", ASKED),
                ("POST", "/infer", ASKED | {"model_name": name}),
            ):  # fmt: skip
                error = (await answer(client, method, path, body, 404))["error"]
                assert error["message"] == f'model "{name}" is not registered; did you mean "{NAME}"?'


@in_loop
async def test_star_of_pattern_matches_slash(tmp_path: Path) -> None:
    allowed = {"*": True, "org/*": True, "org*": True, "*/vector": True, "vector": False, "other/*": False}
    keys = {pattern: make_key("t", models=(pattern,)) for pattern in allowed}
    async with client_of(keyed(tmp_path, *keys.values())) as client:
        for pattern, key in keys.items():
            response = await client.post("/models/org/vector/infer", json=ASKED, headers=key.headers)
            assert response.status_code == (200 if allowed[pattern] else 404)
            absent = await client.get("/models/vector", headers=key.headers)
            assert ("org/vector" in absent.text) == allowed[pattern]


def keyed(folder: Path, *keys: MadeKey, more: str = "") -> LoadedSettings:
    """Return settings with these keys, all of the tenant `t`."""
    write_keys(folder / "keys.toml", *keys)
    return settings_of(folder, more + '[auth]\nmode = "required"\n[[auth.tenants]]\nname = "t"\n')
