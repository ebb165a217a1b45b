"""The requests that the playground shows as code: each of them is run, and gives the answer of the page."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.e2e.configs import DIGITS
from tests.e2e.server import RunningServer, serving
from tests.web.playgrounds import run_module
from tests.web.snippets import run_javascript, run_python, run_shell, shown
from tests.web.tabs import Open, Tab

KEY = "a-key-that-no-snippet-has"


@pytest.fixture
def tab(open_tab: Open, playground: RunningServer) -> Tab:
    return open_tab(f"{playground.url}/#/playground")


def events(printed: str) -> list[dict[str, Any]]:
    """Return the events of a stream that a command printed."""
    return [json.loads(line[6:]) for line in printed.splitlines() if line.startswith("data: {")]


def test_chat_with_options_runs_in_every_language(tab: Tab, tmp_path: Path) -> None:
    page = tab.page
    tab.show("#/playground/writer")
    question = 'It\'s "a" list\\n,\n$HOME `x` ünï 🚂?'
    page.get_by_label("Message", exact=True).fill(question)
    page.get_by_label("System message").fill("Be brief.")
    for label, value in (
        ("Max tokens", "6"),
        ("Temperature", "0"),
        ("Top k", "5"),
        ("Min p", "0.1"),
        ("Stop", "zzz\nqqq"),
    ):
        page.get_by_label(label, exact=True).fill(value)
    texts = {name: shown(page, name) for name in ("curl", "Python (openai)", "Python (httpx)", "JavaScript")}
    page.get_by_role("button", name="Send").click()
    expect(page.locator('.pg-figures[data-phase="done"]')).to_be_visible()
    expect(page.locator(".pg-user")).to_have_text(f"You: {question}")
    expected = "".join(page.locator(".pg-token").all_text_contents())
    assert expected
    # The last request stays in view.
    assert shown(page, "curl") == texts["curl"]
    chunks = [event["choices"] for event in events(run_shell(texts["curl"], tmp_path))]
    chunks_of_httpx = [event["choices"] for event in events(run_python(texts["Python (httpx)"]))]
    for choices in (chunks, chunks_of_httpx, run_javascript(page, texts["JavaScript"])):
        assert "".join(choice["delta"].get("content") or "" for each in choices for choice in each) == expected
    assert run_python(texts["Python (openai)"]) == expected
    assert '"top_k": 5' in texts["Python (openai)"]


def test_completion_without_stream_runs_in_every_language(tab: Tab, tmp_path: Path) -> None:
    page = tab.page
    tab.show("#/playground/writer?tool=completion")
    page.get_by_label("Max tokens").fill("5")
    page.get_by_label("Temperature").fill("0")
    page.get_by_text("Request", exact=True).click()
    page.get_by_text("Stream", exact=True).click()
    page.get_by_role("button", name="Continue").click()
    expect(page.locator('.pg-figures[data-phase="done"]')).to_be_visible()
    expected = "".join(page.locator(".pg-token").all_text_contents())
    assert json.loads(run_shell(shown(page, "curl"), tmp_path))["choices"][0]["text"] == expected
    assert ast.literal_eval(run_python(shown(page, "Python (httpx)")))["choices"][0]["text"] == expected
    assert run_python(shown(page, "Python (openai)")) == f"{expected}\n"
    assert run_javascript(page, shown(page, "JavaScript"))[0]["choices"][0]["text"] == expected


def test_embeddings_and_ranks_run_in_every_language(tab: Tab, tmp_path: Path) -> None:
    page = tab.page
    tab.show("#/playground/encoder")
    page.get_by_label("Texts, one per line").fill("It's a train.\nSteam")
    first = json.loads(run_shell(shown(page, "curl"), tmp_path))["data"][0]["embedding"]
    assert len(first) == 384
    assert run_python(shown(page, "Python (openai)")).startswith(f"0 [{first[0]:.4f}"[:8])
    assert ast.literal_eval(run_python(shown(page, "Python (httpx)")))["data"][0]["embedding"] == pytest.approx(
        first, abs=1e-5
    )
    assert run_javascript(page, shown(page, "JavaScript"))[0]["data"][0]["embedding"] == pytest.approx(first, abs=1e-5)
    tab.show("#/playground/encoder?tool=rank")
    page.get_by_label("Texts, one per line").fill("It's a train.\nSteam")
    answers = [
        json.loads(run_shell(shown(page, "curl"), tmp_path)),
        ast.literal_eval(run_python(shown(page, "Python (httpx)"))),
        run_javascript(page, shown(page, "JavaScript"))[0],
    ]
    assert [len(answer["results"]) for answer in answers] == [2, 2, 2]


def test_tensors_run_in_every_language(tab: Tab, tmp_path: Path) -> None:
    page = tab.page
    tab.show("#/playground/digits")
    page.get_by_role("button", name="Draw the example of 4").click()
    assert json.loads(run_shell(shown(page, "curl"), tmp_path))["outputs"]["output_label"]["data"] == [4]
    assert "output_label [4]" in run_python(shown(page, "Python (tritonclient)"))
    assert ast.literal_eval(run_python(shown(page, "Python (httpx)")))["outputs"]["output_label"]["data"] == [4]
    assert run_javascript(page, shown(page, "JavaScript"))[0]["outputs"]["output_label"]["data"] == [4]
    tab.show("#/playground/names")
    page.get_by_label("Values of x").fill('["it\'s", "ünï"]')
    assert json.loads(run_shell(shown(page, "curl"), tmp_path))["outputs"]["y"]["data"] == ["it's", "ünï"]
    assert "ünï".encode().__repr__()[2:-1] in run_python(shown(page, "Python (tritonclient)"))


def test_long_bodies_are_read_from_file(tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tab.page
    tab.show("#/playground/pictures")
    page.get_by_label("Shape").fill("40, 3, 8, 8")
    page.get_by_label("Fill with").select_option("random")
    texts = {name: shown(page, name) for name in ("curl", "Python (httpx)")}
    with page.expect_download() as download:
        page.get_by_role("button", name="Save request.json").click()
    download.value.save_as(tmp_path / "request.json")
    sent = json.loads((tmp_path / "request.json").read_text(encoding="utf-8"))["inputs"]["x"]
    assert (sent["shape"], len(sent["data"])) == ([40, 3, 8, 8], 40 * 3 * 64)
    assert all(len(text) < 1000 for text in texts.values())
    monkeypatch.chdir(tmp_path)
    shape = [40, 3, 8, 8]
    assert json.loads(run_shell(texts["curl"], tmp_path))["outputs"]["y"]["shape"] == shape
    assert ast.literal_eval(run_python(texts["Python (httpx)"]))["outputs"]["y"]["shape"] == shape


def test_key_is_never_in_snippets_but_used(open_tab: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, DIGITS, {"ROUNDHOUSE_API_KEY": KEY}) as server:
        server.client.headers["authorization"] = f"Bearer {KEY}"
        tab = open_tab(f"{server.wait_ready().url}/#/playground/digits", key=KEY)
        # The server ends before the tab.
        tab.allowed = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING")
        page = tab.page
        page.get_by_role("button", name="Draw the example of 4").click()
        expect(page.locator(".pg-digits .pg-strong")).to_contain_text("4")
        names = ("curl", "Python (tritonclient)", "Python (httpx)", "JavaScript")
        texts = {name: shown(page, name) for name in names}
        assert not any(KEY in text for text in texts.values())
        assert all("ROUNDHOUSE_KEY" in text for text in texts.values())
        assert KEY not in page.content()
        assert KEY not in page.url
        monkeypatch.setenv("ROUNDHOUSE_KEY", KEY)
        assert json.loads(run_shell(texts["curl"], tmp_path, ROUNDHOUSE_KEY=KEY))["outputs"]["output_label"][
            "data"
        ] == [4]
        assert "output_label [4]" in run_python(texts["Python (tritonclient)"])
        assert ast.literal_eval(run_python(texts["Python (httpx)"]))["outputs"]["output_label"]["data"] == [4]
        assert run_javascript(page, texts["JavaScript"], KEY)[0]["outputs"]["output_label"]["data"] == [4]
        refused = run_shell(texts["curl"], tmp_path, ROUNDHOUSE_KEY="another")
        assert json.loads(refused)["error"]["code"] == "unauthenticated"


@pytest.mark.extended
def test_openai_snippets_name_parameters_of_client(tab: Tab) -> None:
    import inspect

    from openai.resources import Completions, Embeddings
    from openai.resources.chat.completions import Completions as ChatCompletions

    body = "({ METHODS }) => Object.values(METHODS).map(({ method, parameters }) => [method, parameters])"
    found = dict(run_module(tab.page, "playground/snippets-openai.js", body))
    methods = {"chat.completions": ChatCompletions, "completions": Completions, "embeddings": Embeddings}
    assert found.keys() == methods.keys()
    for method, parameters in found.items():
        assert set(parameters) <= inspect.signature(methods[method].create).parameters.keys(), method
