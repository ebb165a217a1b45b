"""The playground with a real server: each tool, by mouse and by keyboard."""

import io
import json
import re
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.server import RunningServer
from tests.web.playgrounds import HOLD_CHAT
from tests.web.tabs import Open, Tab

TOOLS = {
    "digits": "Draw the example of 8",
    "encoder": "Compare",
    "encoder?tool=rank": "Rank",
    "classify": "Classify",
    "writer": "Send",
    "writer?tool=completion": "Continue",
    "digits?tool=tensors": "Run",
}
"""Tools, and the button that sends a request."""


@pytest.fixture
def tab(open_tab: Open, playground: RunningServer) -> Tab:
    return open_tab(f"{playground.url}/#/playground")


def bars(page: Page, label: str) -> list[str]:
    """Return the labels of bars in their order."""
    return page.get_by_role("list", name=label).locator(".pg-bar-label").all_inner_texts()


def test_chooser_lists_models_with_their_tools(tab: Tab) -> None:
    cards = tab.page.locator(".pg-card")
    encoder = cards.filter(has=tab.page.get_by_text("encoder", exact=True))
    expect(encoder).to_contain_text("Similarity · Rank · In the browser · Tensors")
    expect(cards.filter(has_text="writer-2")).to_contain_text("Chat · Completion")
    expect(cards.filter(has_text="cross-encoder")).to_contain_text("Rank · Classify")
    expect(cards.filter(has_text="maps")).to_contain_text("registered: not loaded")
    cards.filter(has_text="digits").click()
    expect(tab.page.get_by_role("heading", name="Draw a digit")).to_be_visible()
    tab.page.get_by_role("combobox", name="Model").select_option("maps")
    expect(tab.page.get_by_text("maps is not loaded (registered).")).to_be_visible()


def test_digit_drawn_by_mouse_moves_probabilities(tab: Tab) -> None:
    tab.show("#/playground/digits")
    page = tab.page
    held: list[Route] = []
    later: list[str] = []

    def hold(route: Route) -> None:
        if held:
            later.append(route.request.url)
            route.continue_()
        else:
            held.append(route)

    page.route("**/infer", hold)
    box = page.get_by_role("application").bounding_box()
    assert box is not None
    left, top, side = box["x"], box["y"], box["width"]
    with page.expect_request("**/infer"):
        page.mouse.move(left + 0.3 * side, top + 0.1 * side)
        page.mouse.down()
        for x, y in ((0.75, 0.1), (0.5, 0.5), (0.35, 0.9)):
            page.mouse.move(left + x * side, top + y * side, steps=12)
        page.mouse.up()
    # 36 moves while the first request is not answered: one more request follows, for the whole drawing.
    assert (len(held), later) == (1, [])
    held[0].continue_()
    strong = page.locator(".pg-digits .pg-strong")
    expect(strong).to_contain_text("7")
    assert len(later) == 1
    page.get_by_role("button", name="Draw the example of 0").click()
    expect(strong).to_contain_text("0")
    expect(page.get_by_role("status").filter(has_text="digits reads 0")).to_be_attached()
    expect(page.get_by_role("table", name="Phases of the request")).to_contain_text("Compute")


@pytest.mark.extended
def test_digit_drawn_by_keyboard_is_read(tab: Tab) -> None:
    tab.show("#/playground/digits")
    pad = tab.page.get_by_role("application")
    pad.focus()
    # From the middle to the top, then a line down with Shift: a one.
    for key in (
        "ArrowUp",
        "ArrowUp",
        "ArrowUp",
        "Space",
        *["Shift+ArrowDown"] * 7,
        "ArrowRight",
        *["Shift+ArrowUp"] * 6,
    ):
        pad.press(key)
    expect(tab.page.locator(".pg-digits .pg-strong")).to_contain_text("1")
    expect(tab.page.get_by_text("row 2, column 5, ink")).to_be_attached()
    pad.press("Delete")
    expect(tab.page.locator(".pg-digits .pg-strong")).to_have_count(0)


def test_chat_streams_and_stops(tab: Tab, playground: RunningServer) -> None:
    tab.show("#/playground/writer")
    page = tab.page
    page.evaluate(HOLD_CHAT, 12)
    page.get_by_label("Max tokens").fill("400")
    page.get_by_text("Ignore eos").click()
    page.get_by_label("Message", exact=True).press("Enter")
    stop = page.get_by_role("button", name="Stop")
    expect(page.locator(".pg-token").nth(3)).to_be_visible()
    stop.click()
    expect(page.locator(".pg-figures")).to_contain_text("stopped by you")
    tokens = page.locator(".pg-token").count()
    assert 3 < tokens <= 12
    # The server has ended the text: nothing runs.
    page.get_by_label("Max tokens").fill("4")
    page.get_by_label("Message", exact=True).fill("And a tuple?")
    page.get_by_role("button", name="Send").click()
    expect(page.locator('.pg-figures[data-phase="done"]')).to_contain_text("4 tokens")
    assert playground.client.get("/models/writer").json()["requests"]["inflight"] == 0
    sent = json.loads(page.locator(".pg-snippet").inner_text().split("-d '")[1].rstrip("'").replace("'\\''", "'"))
    assert [each["role"] for each in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["max_tokens"] == 4


@pytest.mark.extended
def test_tokens_show_log_probabilities_by_keyboard(tab: Tab, playground: RunningServer) -> None:
    tab.show("#/playground/writer?tool=completion")
    page = tab.page
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill("8")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator('.pg-figures[data-phase="done"]')).to_be_visible()
    body = {"model": "writer", "prompt": "A list is", "max_tokens": 8, "temperature": 0, "logprobs": 5}
    choice = playground.client.post("/v1/completions", json=body).json()["choices"][0]
    tokens = page.locator(".pg-token")
    assert "".join(tokens.all_text_contents()) == choice["text"]
    card = page.get_by_role("tooltip")
    tokens.first.hover()
    expect(card).to_contain_text(f"log {choice['logprobs']['token_logprobs'][0]:.3f}")
    tokens.first.focus()
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    expect(card).to_contain_text(f"log {choice['logprobs']['token_logprobs'][1]:.3f}")
    expect(card.get_by_role("row")).to_have_count(len(choice["logprobs"]["top_logprobs"][1]))
    page.keyboard.press("Escape")
    expect(card).to_have_count(0)


@pytest.mark.extended
def test_two_models_answer_side_by_side(tab: Tab) -> None:
    tab.show("#/playground/writer")
    page = tab.page
    page.get_by_label("Max tokens").fill("6")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Compare with").select_option("writer-2")
    page.get_by_role("button", name="Send").click()
    replies = [
        page.get_by_role("log", name=f"Conversation with {name}", exact=True).locator(".pg-reply")
        for name in ("writer", "writer-2")
    ]
    for reply in replies:
        expect(reply.locator('.pg-figures[data-phase="done"]')).to_be_visible()
    first, second = (reply.locator(".pg-text").inner_text() for reply in replies)
    assert first == second != ""


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Return the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Bern", "Paris"]}}, "required": ["city"]},
    },
}


@pytest.mark.extended
def test_result_of_called_tool_is_sent(tab: Tab) -> None:
    tab.show("#/playground/writer")
    page = tab.page
    page.locator("summary", has_text="Tools").click()
    page.get_by_role("textbox", name="Tools").fill(json.dumps([WEATHER]))
    page.get_by_label("Tool choice").fill('"required"')
    page.get_by_label("Max tokens").fill("40")
    page.get_by_label("Message", exact=True).fill("Weather?")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator('.pg-figures[data-phase="done"]')).to_have_count(1)
    call = page.get_by_label("Tool call", exact=True).inner_text()
    assert re.fullmatch(r'get_weather\(\{"city": ?"(Bern|Paris)"\}\)', call)
    result = page.get_by_label("Result of get_weather")
    expect(page.get_by_role("button", name="Send result")).to_be_disabled()
    result.fill('{"degrees": 21}')
    assert tab.serious_findings() == []
    page.get_by_label("Tool choice").fill('"none"')
    page.get_by_role("button", name="Send result").click()
    expect(page.locator('.pg-figures[data-phase="done"]')).to_have_count(2)
    expect(result).to_have_count(0)
    sent = json.loads(page.locator(".pg-snippet").inner_text().split("-d '")[1].rstrip("'"))["messages"]
    assert [each["role"] for each in sent] == ["user", "assistant", "tool"]
    (called,) = sent[1]["tool_calls"]
    assert f"{called['function']['name']}({called['function']['arguments']})" == call
    assert sent[2] == {"role": "tool", "tool_call_id": called["id"], "content": '{"degrees": 21}'}


@pytest.mark.extended
def test_chat_shows_refusals_with_their_advice(tab: Tab) -> None:
    tab.allowed = ("400",)
    tab.show("#/playground/writer")
    tab.page.get_by_label("Top p").fill("5")
    tab.page.get_by_role("button", name="Send").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("top_p: expected")
    expect(tab.page.get_by_role("button", name="Send")).to_be_visible()


@pytest.mark.extended
def test_similarities_are_cosines_nearest_first(tab: Tab, playground: RunningServer) -> None:
    tab.show("#/playground/encoder")
    page = tab.page
    texts = ["A cat sleeps.", "Trains need rails.", "A kitten naps."]
    page.get_by_label("Texts, one per line").fill("\n".join(texts))
    page.get_by_role("button", name="Compare").click()
    vectors = np.array(playground.infer("encoder", text=texts)["embeddings"])
    cosines = vectors @ vectors.T
    cells = page.locator(".pg-matrix td")
    expect(cells).to_have_count(9)
    shown = np.array([float(text) for text in cells.all_inner_texts()]).reshape(3, 3)
    np.testing.assert_allclose(shown, cosines, atol=0.0051)
    page.get_by_role("button", name="3 A kitten naps.").click()
    nearest = sorted((0, 1), key=lambda at: -cosines[2, at])
    assert bars(page, "Nearest to text 3, by similarity") == [texts[at] for at in nearest]


@pytest.mark.extended
def test_pipelines_have_tools_of_their_task(tab: Tab, playground: RunningServer) -> None:
    page = tab.page
    expect(page.locator(".pg-card").filter(has=page.get_by_text("unit", exact=True))).to_contain_text(
        "Similarity · Rank"
    )
    tab.show("#/playground/unit")
    texts = ["A cat sleeps.", "A kitten naps."]
    page.get_by_label("Texts, one per line").fill("\n".join(texts))
    page.get_by_role("button", name="Compare").click()
    first, second = np.array(playground.infer("encoder", text=texts, normalize=True)["embeddings"])
    shown = float(page.locator(".pg-matrix td").nth(1).inner_text())
    assert shown == pytest.approx(first @ second, abs=0.0051)
    timing = page.get_by_role("table", name="Phases of the request")
    phases = timing.get_by_role("rowheader").all_inner_texts()
    assert phases == ["Read and decode", "Step embed", "Step unit", "Encode and send", "Network and browser", "Total"]
    tab.show("#/playground/odds")
    page.get_by_label("Shape").fill("1, 3, 8, 8")
    page.get_by_label("Fill with").select_option("ones")
    expect_values(page, "odds", *[0.125] * 64)


def test_rank_and_labels_are_those_of_server(tab: Tab, playground: RunningServer) -> None:
    page = tab.page
    tab.show("#/playground/cross-encoder")
    texts = ["the cat sat", "steam engine", "mat ."]
    page.get_by_label("Query", exact=True).fill("engine")
    page.get_by_label("Texts, one per line").fill("\n".join(texts))
    page.get_by_role("button", name="Rank").click()
    expect(page.get_by_role("list", name="Texts, the best first")).to_be_visible()
    body = {"model": "cross-encoder", "query": "engine", "documents": texts}
    results = playground.client.post("/v1/rerank", json=body).json()["results"]
    assert bars(page, "Texts, the best first") == [texts[each["index"]] for each in results]
    tab.show("#/playground/classify")
    page.get_by_label("Texts, one per line").fill("the cat\nsteam runs")
    page.get_by_role("button", name="Classify").click()
    expect(page.get_by_role("list", name="Labels of text 2")).to_be_visible()
    predictions = playground.infer("classify", text=["the cat", "steam runs"])["predictions"]
    for at, labels in enumerate(predictions):
        assert bars(page, f"Labels of text {at + 1}") == [each["label"] for each in labels]


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    """Write [height, width, 3] bytes as a PNG file."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(np.uint8))

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def expect_values(page: Page, output: str, *values: float) -> None:
    """Run the form and wait for the values in the table of an output."""
    page.get_by_role("button", name="Run", exact=True).click()
    cells = page.get_by_role("region", name=f"Output {output}").get_by_role("cell")
    expect(cells).to_have_text([str(value) for value in values])


def test_tensors_from_form_files_and_json_arrive(tab: Tab) -> None:
    page = tab.page
    tab.show("#/playground/numbers")
    page.get_by_label("Values of x").fill("[[1, 2, 3], [4, 5, 6]]")
    expect_values(page, "y", 1, 2, 3, 4, 5, 6)
    page.get_by_label("File").set_input_files({"name": "a.npy", "mimeType": "", "buffer": npy(np.array([[2**40, -7]]))})
    expect(page.get_by_text("from a.npy")).to_be_visible()
    expect_values(page, "y", 2**40, -7)
    page.get_by_label("Fill with").select_option("ones")
    page.get_by_label("Shape").fill("3, 1")
    page.get_by_label("Fill with").select_option("ones")
    expect_values(page, "y", 1, 1, 1)
    page.get_by_label("File").set_input_files({"name": "b.json", "mimeType": "application/json", "buffer": b"[[9, 8]]"})
    expect(page.get_by_text("from b.json")).to_be_visible()
    page.get_by_role("button", name="JSON").click()
    editor = page.get_by_label("Body of the request")
    body = json.loads(editor.input_value())
    assert body["inputs"]["x"] == {"shape": [1, 2], "dtype": "int64", "data": [9, 8]}
    editor.fill('{"inputs": {"x": [[5], [6]]}}')
    expect_values(page, "y", 5, 6)
    editor.fill("{")
    expect(page.get_by_text("Expected JSON")).to_be_visible()
    expect(page.get_by_role("button", name="Run")).to_be_disabled()


@pytest.mark.extended
def test_wrong_values_are_explained_in_form(tab: Tab) -> None:
    page = tab.page
    tab.show("#/playground/digits?tool=tensors")
    values = page.get_by_label("Values of image")
    for text, fault in (("[1, 2", "expected JSON"), ("[1, 2]", "expected 64"), ("[[1], [2, 3]]", "rows of one length")):
        values.fill(text)
        expect(page.get_by_role("alert")).to_contain_text(fault)
        expect(page.get_by_role("button", name="Run")).to_be_disabled()
    values.fill(json.dumps([8] * 128))
    expect(page.get_by_label("Shape")).to_have_value("2, 64")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("list", name="Row 2")).to_be_visible()
    page.get_by_label("File").set_input_files({"name": "c.npy", "mimeType": "", "buffer": b"not numpy"})
    expect(page.get_by_role("alert")).to_contain_text("expected a .npy file")


def test_picture_is_scaled_and_shown_as_image(tab: Tab) -> None:
    page = tab.page
    tab.show("#/playground/pictures")
    pixels = np.zeros((16, 16, 3))
    pixels[:, :, 0], pixels[:, :, 2] = 255, 51
    page.get_by_label("Picture values").select_option("0 to 255")
    page.get_by_label("File").set_input_files({"name": "red.png", "mimeType": "image/png", "buffer": png(pixels)})
    expect(page.get_by_text("from red.png")).to_be_visible()
    expect_values(page, "y", *[255] * 64)
    page.get_by_label("Plane").fill("2")
    expect(page.get_by_role("region", name="Output y").get_by_role("cell").first).to_have_text("51")
    page.get_by_role("button", name="Image").click()
    expect(page.get_by_role("img", name=re.compile("^y: 8 . 8 values from 51 to 51$"))).to_be_visible()
    page.get_by_role("button", name="Heat map").click()
    expect(page.locator(".pg-picture canvas")).to_be_visible()


@pytest.mark.extended
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_tools_are_accessible_and_fit(open_tab: Open, playground: RunningServer, width: int, scheme: str) -> None:
    tab = open_tab(f"{playground.url}/#/playground", width=width, scheme=scheme)
    page = tab.page
    expect(page.locator(".pg-card").first).to_be_visible()
    assert (tab.serious_findings(), tab.overflow()) == ([], 0)
    for tool, button in TOOLS.items():
        tab.show(f"#/playground/{tool}")
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.get_by_role("table", name="Phases of the request")).to_be_visible()
        assert (tool, tab.serious_findings(), tab.overflow()) == (tool, [], 0)
