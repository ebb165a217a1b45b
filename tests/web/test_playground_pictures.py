"""Pictures in a chat: chosen, pasted, dropped and drawn; their bounds; and models that read none."""

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Request, expect

from tests.e2e.server import MODELS, RunningServer, serving
from tests.frameworks.pytorch.generation.vision.seeing import image
from tests.support.models.vision.catalogue import MAKERS
from tests.web.playgrounds import run_module
from tests.web.snippets import run_javascript, run_python, run_shell, shown
from tests.web.tabs import Open, Tab

CHAT = "/v1/chat/completions"
SMALL, LARGE = image(1), image(2, (300, 200))
MAX_PIXELS = 10_000
TIMES = "\N{MULTIPLICATION SIGN}"
GIVE = """([kind, encoded, name, type]) => {
    const bytes = Uint8Array.from(atob(encoded), (each) => each.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], name, { type }));
    const event = kind === "paste"
        ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true })
        : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
    document.querySelector(".pg-composer textarea").dispatchEvent(event);
}"""
"""Paste a file into the message, or drop it there."""


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with a model that reads two pictures, and one that reads none."""
    folder = tmp_path_factory.mktemp("seeing")
    (folder / "smolvlm").mkdir()
    MAKERS["smolvlm"](folder / "smolvlm")
    bounds = f"max_images = 2\nmax_image_pixels = {MAX_PIXELS}"
    entries = "".join(
        f'[[models.torch_models]]\nname = "{name}"\npath = "{path}"\nkernels = "plain"\n{more}\n'
        for name, path, more in (
            ("seeing", folder / "smolvlm", f'dtype = "f32"\n{bounds}'),
            ("texts", MODELS / "tiny-llama", ""),
        )
    )
    with serving(folder, entries) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture
def tab(open_tab: Open, seeing: RunningServer) -> Tab:
    tab = open_tab(f"{seeing.url}/#/playground/seeing")
    tab.page.get_by_label("Max tokens").fill("4")
    return tab


@pytest.fixture
def sent(tab: Tab) -> Iterator[list[dict[str, Any]]]:
    """Collect the body of each request for a chat."""
    found: list[dict[str, Any]] = []

    def note(request: Request) -> None:
        if request.url.endswith(CHAT):
            found.append(json.loads(request.post_data or ""))

    tab.page.on("request", note)
    yield found
    tab.page.remove_listener("request", note)


def encoded(content: bytes) -> str:
    return b64encode(content).decode()


def data_url(content: bytes) -> str:
    return f"data:image/png;base64,{encoded(content)}"


def choose(page: Page, content: bytes, name: str = "photo.png") -> None:
    file: Any = {"name": name, "mimeType": "image/png", "buffer": content}
    page.get_by_label("Add pictures", exact=True).set_input_files(file)


def give(page: Page, kind: str, content: bytes, name: str, media_type: str = "image/png") -> None:
    """Paste or drop a file. `kind`: "paste" or "drop"."""
    page.evaluate(GIVE, [kind, encoded(content), name, media_type])


def chosen(page: Page) -> Locator:
    return page.get_by_role("list", name="Pictures of the next message").get_by_role("img")


def ask(page: Page, text: str, number: int) -> None:
    """Send a message and wait until the conversation has this number of answers."""
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator('.pg-figures[data-phase="done"]')).to_have_count(number)


def expect_size(picture: Locator, width: int, height: int) -> None:
    expect(picture).to_have_js_property("naturalWidth", width)
    expect(picture).to_have_js_property("naturalHeight", height)


def urls(message: dict[str, Any]) -> list[str]:
    return [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]


def test_chosen_picture_is_sent_and_shown(tab: Tab, sent: list[dict[str, Any]]) -> None:
    page = tab.page
    choose(page, SMALL)
    expect(chosen(page)).to_have_attribute("alt", "photo.png")
    ask(page, "Tell me.", 1)
    expect(chosen(page)).to_have_count(0)
    parts = [{"type": "image_url", "image_url": {"url": data_url(SMALL)}}, {"type": "text", "text": "Tell me."}]
    assert sent[-1]["messages"] == [{"role": "user", "content": parts}]
    turn = page.get_by_role("group", name="Message 1", exact=True)
    picture = turn.get_by_role("img", name="photo.png")
    expect_size(picture, 48, 32)
    above, text = picture.bounding_box(), turn.locator(".pg-user").bounding_box()
    assert above is not None
    assert text is not None
    assert above["y"] + above["height"] <= text["y"]
    # Later requests have it, too, as the conversation after a new load of the page.
    ask(page, "And then?", 2)
    page.reload()
    expect(picture).to_be_visible()
    page.get_by_label("Max tokens").fill("4")
    ask(page, "What else?", 3)
    assert [urls(body["messages"][0]) for body in sent] == [[data_url(SMALL)]] * 3
    assert sent[-1]["messages"][-1] == {"role": "user", "content": "What else?"}
    # An edit changes the text alone.
    turn.get_by_role("button", name="Edit").click()
    turn.get_by_label("Text of the message").fill("Say it.")
    turn.get_by_role("button", name="Ask again").click()
    expect(page.locator('.pg-figures[data-phase="done"]')).to_have_count(1)
    assert sent[-1]["messages"][0]["content"] == [parts[0], {"type": "text", "text": "Say it."}]


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_pictures_keep_bounds_of_model(open_tab: Open, seeing: RunningServer, width: int, scheme: str) -> None:
    tab = open_tab(f"{seeing.url}/#/playground/seeing", width=width, scheme=scheme)
    page = tab.page
    expect(page.get_by_label("Add pictures", exact=True)).to_be_attached()
    give(page, "paste", SMALL, "image.png")
    expect(chosen(page)).to_have_count(1)
    give(page, "drop", LARGE, "image.png")
    expect(chosen(page)).to_have_count(2)
    composer = page.locator(".pg-composer")
    expect(composer).to_contain_text(f"image-122x81.png is scaled down from 300 {TIMES} 200 to 122 {TIMES} 81 pixels.")
    expect_size(chosen(page).nth(1), 122, 81)
    give(page, "drop", SMALL, "third.png")
    expect(composer).to_contain_text("third.png is left out: a conversation has at most 2 pictures.")
    give(page, "paste", b"text", "notes.txt", "text/plain")
    expect(composer).to_contain_text("notes.txt is left out: expected JPEG, PNG")
    assert (tab.serious_findings(), tab.overflow()) == ([], 0)
    # By keyboard: the focus goes to the next button, then to the text.
    page.get_by_role("button", name="Remove image.png").press("Enter")
    remaining = page.get_by_role("button", name="Remove image-122x81.png")
    expect(remaining).to_be_focused()
    remaining.press("Enter")
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    give(page, "paste", b"no picture", "damaged.png")
    expect(composer).to_contain_text("damaged.png is left out: the browser cannot read it.")
    expect(chosen(page)).to_have_count(0)


def test_drawing_is_sent_without_text(tab: Tab, sent: list[dict[str, Any]]) -> None:
    page = tab.page
    page.get_by_label("Message", exact=True).fill("")
    send = page.get_by_role("button", name="Send", exact=True)
    expect(send).to_be_disabled()
    page.get_by_role("button", name="Draw", exact=True).click()
    dialog = page.get_by_role("dialog", name="Draw a picture")
    add = dialog.get_by_role("button", name="Add the drawing")
    expect(add).to_be_disabled()
    dialog.get_by_role("application").press("Space")
    assert tab.serious_findings() == []
    add.click()
    expect(chosen(page)).to_have_attribute("alt", "drawing-100x100.png")
    send.click()
    expect(page.locator('.pg-figures[data-phase="done"]')).to_have_count(1)
    assert [part["type"] for part in sent[-1]["messages"][0]["content"]] == ["image_url"]
    kept = page.get_by_role("list", name="Kept conversations").get_by_role("listitem")
    expect(kept).to_contain_text("drawing-100x100.png")


def test_model_without_vision_has_no_controls_but_hint(tab: Tab, sent: list[dict[str, Any]]) -> None:
    page = tab.page
    choose(page, SMALL)
    page.get_by_label("Compare with").select_option("texts")
    hint = page.get_by_text("texts reads no pictures.")
    expect(hint).to_be_visible()
    page.get_by_label("Message", exact=True).fill("Both?")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator('.pg-figures[data-phase="done"]')).to_have_count(2)
    contents = {body["model"]: body["messages"][0]["content"] for body in sent}
    assert contents["texts"] == "Both?"
    assert urls({"content": contents["seeing"]}) == [data_url(SMALL)]
    # The same conversation with a model that has lost its vision, and its picture.
    page.evaluate("""() => {
        const [[key, text]] = Object.entries(localStorage).filter(([key]) => key.startsWith("roundhouse.chat "));
        const kept = JSON.parse(text);
        kept.turns[0].pictures.push({ name: "lost.png", url: null, width: 1, height: 1 });
        localStorage.setItem(key, JSON.stringify({ ...kept, model: "texts", second: null }));
        sessionStorage.setItem("roundhouse.chat / texts", kept.id);
    }""")
    tab.show("#/playground/texts")
    expect(page.get_by_role("img", name="photo.png")).to_be_visible()
    expect(page.get_by_text("lost.png is not kept")).to_be_visible()
    expect(page.get_by_text("The browser has not kept 1 picture of this conversation.")).to_be_visible()
    expect(hint).to_be_visible()
    expect(page.get_by_label("Add pictures", exact=True)).to_have_count(0)
    expect(page.get_by_role("button", name="Draw", exact=True)).to_have_count(0)
    give(page, "paste", SMALL, "image.png")
    expect(page.get_by_role("button", name="Remove image.png")).to_have_count(0)


def test_chat_with_picture_runs_in_every_language(tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tab.page
    name = "a \"b\" 'c', $d;`e`.png"
    choose(page, SMALL, name)
    page.get_by_label("Message", exact=True).fill('It\'s "a" list\\n,\n$HOME `x` $(date) ünï 🚂?')
    page.get_by_label("Temperature", exact=True).fill("0")
    texts = {each: shown(page, each) for each in ("curl", "Python (openai)", "Python (httpx)", "JavaScript")}
    assert not any(encoded(SMALL)[:100] in text for text in texts.values())
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Save {name}", exact=True).click()
    download.value.save_as(tmp_path / name)
    assert (tmp_path / name).read_bytes() == SMALL
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator('.pg-figures[data-phase="done"]')).to_be_visible()
    expected = "".join(page.locator(".pg-token").all_text_contents())
    monkeypatch.chdir(tmp_path)
    printed = [run_shell(texts["curl"], tmp_path), run_python(texts["Python (httpx)"])]
    chunks = [json.loads(line[6:]) for text in printed for line in text.splitlines() if line.startswith("data: {")]
    assert text_of([chunk["choices"] for chunk in chunks]) == expected * 2
    assert run_python(texts["Python (openai)"]) == expected
    first, rest = texts["JavaScript"].split("\n", 1)
    assert first == 'import { readFile } from "node:fs/promises";'
    # The page has no files: here the function of Node.js returns the picture.
    assert text_of(run_javascript(page, f'const readFile = async () => "{encoded(SMALL)}";\n{rest}')) == expected


def text_of(events: list[list[dict[str, Any]]]) -> str:
    """Return the text of a stream. `events`: the choices of each."""
    return "".join(choice["delta"].get("content") or "" for choices in events for choice in choices)


@pytest.mark.extended
def test_scaled_sizes_are_within_bound(tab: Tab) -> None:
    sizes = [[300, 200, 10_000], [48, 32, 10_000], [1, 50_000, 10], [50_000, 1, 10], [3, 3, 1], [8000, 6000, 1_000_000]]
    body = "({ sizeWithin }, all) => all.map(([width, height, most]) => Object.values(sizeWithin(width, height, most)))"
    found = run_module(tab.page, "playground/chat-pictures.js", body, sizes)
    assert found == [[122, 81], [48, 32], [1, 10], [10, 1], [1, 1], [1154, 866]]


@pytest.mark.extended
def test_pictures_have_names_of_their_own(tab: Tab) -> None:
    taken = ["image.png", "image-2.png", "plain", ".hidden"]
    body = "({ freeName }, [names, taken]) => names.map((name) => freeName(name, taken))"
    found = run_module(tab.page, "playground/chat-pictures.js", body, [["a.b.png", *taken], taken])
    assert found == ["a.b.png", "image-3.png", "image-2-2.png", "plain-2", "-2.hidden"]


@pytest.mark.extended
def test_large_pictures_are_not_kept(tab: Tab) -> None:
    body = """({ packConversation, unpackConversation }, sizes) => {
        const pictureOf = (url) => ({ name: "a.png", url, width: 1, height: 1 });
        const turnOf = (url) => ({ user: "", pictures: [pictureOf(url)], texts: {} });
        const turns = sizes.map((size) => turnOf("data:image/png;base64,".padEnd(size, "A")));
        const whole = { id: "c", model: "m", updated: 1, system: "", second: null, options: {}, turns };
        const kept = unpackConversation(JSON.parse(JSON.stringify(packConversation(whole))));
        const other = { ...kept, turns: [turnOf("https://a.example/b.png")] };
        return [kept.turns.map((turn) => turn.pictures[0].url?.length ?? 0), unpackConversation(other)];
    }"""
    half = 256 * 1024
    found = run_module(tab.page, "playground/conversation-record.js", body, [half, 2 * half, half, 100])
    assert found == [[half, 0, half, 0], None]
