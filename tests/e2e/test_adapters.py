"""Adapters over a real socket: in the server's process, in a process of the model, and with several workers."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

from tests.e2e.server import WAIT_S, RunningServer, assert_refused, serving
from tests.support.models.causal_folders import byte_tokenizer, causal_model, save_causal_model
from tests.support.models.lora_folders import Lora, merge, save_lora

NEW_TOKENS = 10
PROMPT = "engines wait "
LORAS = {"red": Lora(1), "blue": Lora(2, rank=2, target_modules=("q_proj", "v_proj"))}
WAYS = {
    "none": "",
    "process": '[performance]\nisolation = "process"\n',
    "workers": "[server]\nworkers = 2\n",
}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of the model `lm` and of three adapters by name."""
    folder = tmp_path_factory.mktemp("adapters")
    model = causal_model()
    adapters = {name: save_lora(folder / name, lora, model) for name, lora in [*LORAS.items(), ("green", Lora(3))]}
    return adapters | {"lm": save_causal_model(folder / "lm")}


@pytest.fixture(scope="module", params=["none", pytest.param("process", marks=pytest.mark.extended), "workers"])
def server(request: pytest.FixtureRequest, folder_of: dict[str, Path]) -> Iterator[RunningServer]:
    """The model `lm` with its adapters `red` and `blue`; `green` is below the roots."""
    folder = folder_of["lm"].parent
    tables = "".join(f'[[models.torch_models.adapters]]\nname = "{name}"\npath = "./{name}"\n' for name in LORAS)
    config = (
        f'{WAYS[request.param]}[models]\nroots = ["{folder}"]\n[[models.torch_models]]\nname = "lm"\n'
        f'path = "{folder}/lm"\nkv_cache_bytes = "2MiB"\n{tables}'
    )
    with serving(folder, config) as running:
        yield running.wait_ready()


def merged_text(lora: Lora | None) -> str:
    """Return the greedy text of the model with the adapter merged into it."""
    model, tokenizer = causal_model(), byte_tokenizer()
    if lora is not None:
        merge(model, lora)
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    text = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False)[0, ids.shape[1] :]
    decoded: str = tokenizer.decode(text, skip_special_tokens=True)
    return decoded


def texts_of(server: RunningServer, names: list[str]) -> list[str]:
    """Ask all models at once; check that each response names the model as the request does."""

    async def ask() -> list[str]:
        async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S, trust_env=False, verify=False) as client:
            bodies = [{"model": name, "prompt": PROMPT, "max_tokens": NEW_TOKENS, "temperature": 0} for name in names]
            answers = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
        assert [answer.json().get("model") for answer in answers] == names, answers[0].text
        return [answer.json()["choices"][0]["text"] for answer in answers]

    return asyncio.run(ask())


def test_concurrent_texts_equal_merged_models(server: RunningServer) -> None:
    names = ["lm", "lm:red", "lm:blue"]
    expected = [merged_text(lora) for lora in (None, *LORAS.values())]
    assert len(set(expected)) == len(names)
    assert texts_of(server, names * 4) == expected * 4


def test_every_route_takes_adapters(server: RunningServer) -> None:
    expected = merged_text(LORAS["red"])
    body = {"prompt": PROMPT, "max_tokens": NEW_TOKENS, "temperature": 0}
    native = [
        server.client.post("/infer", json=body | {"model_name": "lm:red"}),
        server.client.post("/models/lm:red/infer", json=body),
        server.client.post("/models/lm:red/versions/1/infer", json=body),
    ]
    assert [(each.status_code, each.json()["text"]) for each in native] == [(200, expected)] * 3
    parameters = {"max_tokens": NEW_TOKENS, "temperature": 0}
    generated = server.client.post(
        "/v2/models/lm:red/generate", json={"text_input": PROMPT, "parameters": parameters}
    ).json()
    assert (generated["model_name"], generated["text_output"]) == ("lm:red", expected)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=WAIT_S)
    messages: Any = [{"role": "user", "content": PROMPT}]
    for name in ("lm:red", "lm"):
        pieces = client.chat.completions.create(
            model=name, messages=messages, max_tokens=NEW_TOKENS, temperature=0, stream=True
        )
        assert {piece.model for piece in pieces} == {name}


def test_ollama_describes_adapters(server: RunningServer) -> None:
    tags = {each["name"] for each in server.client.get("/api/tags").json()["models"]}
    assert {"lm", "lm:red", "lm:blue"} <= tags
    shown = {name: server.client.post("/api/show", json={"model": name}).json() for name in ("lm", "lm:red:latest")}
    assert [each["details"]["parent_model"] for each in shown.values()] == ["", "lm"]
    assert shown["lm"]["capabilities"] == shown["lm:red:latest"]["capabilities"]
    assert server.client.post("/api/show", json={"model": "lm:rde"}).status_code == 404


def test_unknown_adapter_names_known_ones(server: RunningServer) -> None:
    for name, hint in (("lm:rde", "there is red"), ("lm:green", "there is")):
        answer = server.client.post("/infer", json={"model_name": name, "prompt": PROMPT})
        assert_refused(answer, 404, "adapter_not_found", hint)
    for name in ("ml:red", "lm:"):
        answer = server.client.post("/infer", json={"model_name": name, "prompt": PROMPT})
        assert_refused(answer, 404, "model_not_found", "there is lm")


def test_adapter_is_added_and_deleted(server: RunningServer, folder_of: dict[str, Path]) -> None:
    """Only in the process of the server; elsewhere adapters are those of the entry."""
    body = {"name": "green", "path": str(folder_of["green"])}
    added = server.client.post("/models/lm/adapters", json=body)
    if server.client.get("/models/lm").json()["adapters"][-1]["name"] != "green":
        assert_refused(added, 400, "invalid_input", "in the server's own process", "name the adapter in its entry")
        deleted = server.client.delete("/models/lm/adapters/red")
        assert_refused(deleted, 400, "invalid_input", "in the server's own process")
        return
    assert added.status_code == 201, added.text
    expected = [merged_text(Lora(3)), merged_text(LORAS["red"])]
    assert texts_of(server, ["lm:green", "lm:red"]) == expected
    assert_refused(server.client.post("/models/lm/adapters", json=body), 409, "adapter_exists")
    assert server.client.delete("/models/lm/adapters/green").json() == {"deleted": "lm:green"}
    assert_refused(server.client.delete("/models/lm/adapters/green"), 404, "adapter_not_found", "there is blue, red")
    refused = server.client.post("/infer", json={"model_name": "lm:green", "prompt": PROMPT})
    assert_refused(refused, 404, "adapter_not_found")


def test_invalid_adapters_are_refused(server: RunningServer, folder_of: dict[str, Path]) -> None:
    green = str(folder_of["green"])
    for body, status, code, word in (
        ({"name": "a:b", "path": green}, 400, "invalid_input", "name"),
        ({"name": "a", "path": "hf://org/name"}, 400, "invalid_input", "path"),
        ({"name": "a", "path": "/etc"}, 403, "forbidden", "models.roots"),
        ({"name": "a", "path": f"{green}/none"}, 400, "invalid_input", ""),
        ({"name": "a"}, 400, "invalid_input", "path"),
        ({"name": "a", "path": green, "rank": 4}, 400, "unknown_field", "rank"),
    ):
        assert_refused(server.client.post("/models/lm/adapters", json=body), status, code, word)
    assert_refused(server.client.post("/models/ml/adapters", json={}), 404, "model_not_found")


def test_lists_show_adapters(server: RunningServer) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=WAIT_S)
    assert {"lm", "lm:red", "lm:blue"} <= {each.id for each in client.models.list()}
    assert client.models.retrieve("lm:red").id == "lm:red"
    shown = {each["name"]: each for each in server.client.get("/models/lm").json()["adapters"]}
    assert shown["red"]["rank"] == LORAS["red"].rank
    assert shown["blue"]["memory_bytes"] > 0
