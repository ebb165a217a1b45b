"""The messages of a chat: copied, regenerated, edited and kept, with their calls of tools and their reasoning."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Request, Route, expect

from tests.e2e.server import RunningServer
from tests.web.tabs import Open, Tab

CHAT = "/v1/chat/completions"


@pytest.fixture
def tab(open_tab: Open, playground: RunningServer) -> Iterator[Tab]:
    tab = open_tab(f"{playground.url}/#/playground/writer")
    tab.page.get_by_label("Max tokens").fill("4")
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield tab
    tab.page.context.clear_permissions()


@pytest.fixture
def sent(tab: Tab) -> Iterator[list[list[dict[str, Any]]]]:
    """Collect the messages of each request for a chat."""
    found: list[list[dict[str, Any]]] = []

    def note(request: Request) -> None:
        if request.url.endswith(CHAT):
            found.append(body_of(request)["messages"])

    tab.page.on("request", note)
    yield found
    tab.page.remove_listener("request", note)


def ask(page: Page, text: str, number: int) -> None:
    """Send a message and wait until the conversation has this number of answers."""
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send", exact=True).click()
    expect_answers(page, number)


def expect_answers(page: Page, number: int) -> None:
    expect(page.locator('.pg-figures[data-phase="done"]')).to_have_count(number)
    expect(page.locator(".pg-turn")).to_have_count(number)


def message(page: Page, number: int, model: str = "writer") -> Locator:
    """Return a message with its answer. `number`: from 1."""
    log = page.get_by_role("log", name=f"Conversation with {model}", exact=True)
    return log.get_by_role("group", name=f"Message {number}", exact=True)


def expect_folded_options_on_phone(page: Page) -> None:
    length = page.get_by_label("Max tokens")
    expect(length).to_be_visible()
    page.set_viewport_size({"width": 360, "height": 800})
    expect(length).to_be_hidden()
    page.locator("summary", has_text="Options").press("Enter")
    expect(length).to_be_visible()


def body_of(request: Request) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(request.post_data or "")
    return body


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [each["role"] for each in messages]


def test_conversation_is_edited_kept_and_deleted(tab: Tab, sent: list[list[dict[str, Any]]]) -> None:
    page = tab.page
    ask(page, "First?", 1)
    ask(page, "Second?", 2)
    phases = page.get_by_text("Phases in the server").get_by_role("link")
    assert phases.get_attribute("href") == f"#/requests/{phases.text_content()}"
    first = message(page, 1)
    answer = "".join(first.locator(".pg-token").all_text_contents())
    first.get_by_role("button", name="Copy").click()
    expect(first.get_by_role("button", name="Copied")).to_be_visible()
    expect(first.get_by_role("status").filter(has_text="Copied")).to_be_attached()
    assert page.evaluate("navigator.clipboard.readText()") == answer
    first.get_by_role("button", name="Regenerate").click()
    expect_answers(page, 1)
    assert sent[-1] == sent[0]
    # By keyboard: cancelled, then submitted.
    edit = first.get_by_role("button", name="Edit")
    edit.press("Enter")
    text = first.get_by_label("Text of the message")
    expect(text).to_be_focused()
    text.fill("Never sent")
    text.press("Escape")
    expect(first.locator(".pg-user")).to_have_text("You: First?")
    expect(edit).to_be_focused()
    ask(page, "Second?", 2)
    edit.press("Enter")
    expect(text).to_have_value("First?")
    text.fill("Another?")
    text.press("Enter")
    expect_answers(page, 1)
    expect(first.locator(".pg-user")).to_have_text("You: Another?")
    assert sent[-1] == [{"role": "user", "content": "Another?"}]
    # It is there after a new load of the page, beside another one.
    answer = first.locator(".pg-text").inner_text()
    page.reload()
    expect(first.locator(".pg-user")).to_have_text("You: Another?")
    expect(first.locator(".pg-text")).to_have_text(answer)
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_text("Write a message to writer.")).to_be_visible()
    ask(page, "Beside it?", 1)
    kept = page.get_by_role("list", name="Kept conversations").get_by_role("listitem")
    expect(kept).to_contain_text(["Beside it?", "Another?"])
    kept.nth(1).get_by_role("button").first.click()
    expect(first.locator(".pg-user")).to_have_text("You: Another?")
    ask(page, "And then?", 2)
    assert [each["content"] for each in sent[-1]] == ["Another?", answer, "And then?"]
    page.get_by_role("button", name="Delete all").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete all").click()
    expect(kept).to_have_count(0)
    expect(page.get_by_text("Write a message to writer.")).to_be_visible()
    assert page.evaluate("[localStorage.length, sessionStorage.length]") == [0, 0]
    expect_folded_options_on_phone(page)


CALLS = [
    {
        "index": at,
        "id": f"call-{at}",
        "type": "function",
        "function": {"name": "weather", "arguments": f'{{"at": {at}}}'},
    }
    for at in range(2)
]
"""The calls of an answer, as a stream has them."""


def stream_of(*deltas: dict[str, Any], finish: str = "stop") -> str:
    """Return the body of a streamed answer."""
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas
    ]
    choices.append({"index": 0, "delta": {}, "logprobs": None, "finish_reason": finish})
    return "".join(f"data: {json.dumps({'choices': [each]})}\n\n" for each in choices) + "data: [DONE]\n\n"


def answer_with(page: Page, *bodies: str) -> None:
    """Answer the next chats with these streams, in this order."""
    left = list(bodies)

    def fulfil(route: Route) -> None:
        route.fulfill(content_type="text/event-stream", body=left.pop(0))

    page.route(f"**{CHAT}", fulfil)


@pytest.mark.extended
def test_calls_and_reasoning_survive_regenerate_and_edit(tab: Tab, sent: list[list[dict[str, Any]]]) -> None:
    page = tab.page
    calling = stream_of(
        {"reasoning_content": "Look "}, {"reasoning_content": "it up."}, {"tool_calls": CALLS}, finish="tool_calls"
    )
    told = stream_of({"reasoning_content": "Easy."}, {"content": "It is warm."})
    answer_with(page, calling, *[told] * 5)
    ask(page, "Weather?", 1)
    first = message(page, 1)
    expect(first.get_by_label("Tool call")).to_have_text(['weather({"at": 0})', 'weather({"at": 1})'])
    for at in range(2):
        page.get_by_label(f"Result of weather, call {at + 1}").fill(f"{20 + at}")
    page.get_by_role("button", name="Send results").click()
    expect_answers(page, 2)
    second = message(page, 2)
    expect(second.locator(".pg-result")).to_have_text(["Result: 20", "Result: 21"])
    # Closed, as the text is complete.
    expect(second.get_by_text("Easy.")).to_be_hidden()
    second.get_by_text("Reasoning").click()
    expect(second.get_by_text("Easy.")).to_be_visible()
    asked = sent[-1]
    assert roles(asked) == ["user", "assistant", "tool", "tool"]
    assert asked[1]["reasoning_content"] == "Look it up."
    assert [each["id"] for each in asked[1]["tool_calls"]] == ["call-0", "call-1"]
    second.get_by_role("button", name="Copy").click()
    expect(second.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "It is warm."
    with page.expect_request(f"**{CHAT}"):
        second.get_by_role("button", name="Regenerate").click()
    expect_answers(page, 2)
    assert sent[-1] == asked
    ask(page, "Thanks.", 3)
    assert sent[-1][:4] == asked
    assert sent[-1][4] == {"role": "assistant", "content": "It is warm.", "reasoning_content": "Easy."}
    # The results of the calls are changed; the messages before them stay.
    second.get_by_role("button", name="Edit").click()
    results = second.get_by_role("form", name="Results of tools")
    expect(results.get_by_label("Result of weather, call 1")).to_be_focused()
    results.get_by_label("Result of weather, call 2").fill("30")
    assert tab.serious_findings() == []
    results.get_by_role("button", name="Ask again").click()
    expect_answers(page, 2)
    assert sent[-1] == [*asked[:3], {**asked[3], "content": "30"}]
    first.get_by_role("button", name="Regenerate").click()
    expect_answers(page, 1)
    assert roles(sent[-1]) == ["user"]


@pytest.mark.extended
def test_regenerate_asks_one_of_two_models(tab: Tab, sent: list[list[dict[str, Any]]]) -> None:
    page = tab.page
    page.get_by_label("Compare with").select_option("writer-2")
    answer_with(page, *[stream_of({"content": f"Text {number}."}) for number in range(1, 8)])
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator('.pg-figures[data-phase="done"]')).to_have_count(2)
    left, right = message(page, 1), message(page, 1, "writer-2")
    kept = left.locator(".pg-text").inner_text()
    right.get_by_role("button", name="Regenerate").click()
    expect(right.locator(".pg-text")).to_have_text("Text 3.")
    expect(left.locator(".pg-text")).to_have_text(kept)
    # The next message has both texts, each in the request of its model.
    page.get_by_label("Message", exact=True).fill("And?")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator('.pg-figures[data-phase="done"]')).to_have_count(4)
    assert {messages[1]["content"] for messages in sent[-2:]} == {kept, "Text 3."}
    right.get_by_role("button", name="Edit").click()
    right.get_by_label("Text of the message").fill("Both?")
    right.get_by_role("button", name="Ask again").click()
    for each in (left, right):
        expect(each.locator(".pg-user")).to_have_text("You: Both?")
    expect(page.locator('.pg-figures[data-phase="done"]')).to_have_count(2)


@pytest.mark.extended
def test_copy_works_without_clipboard_of_browser(tab: Tab) -> None:
    page = tab.page
    answer_with(page, stream_of({"content": "Line 1\nLine 2"}))
    ask(page, "Lines?", 1)
    # As on a page without TLS from another machine.
    page.evaluate("""() => {
        window.real = navigator.clipboard;
        Object.defineProperty(navigator, "clipboard", { value: undefined, configurable: true });
    }""")
    button = message(page, 1).get_by_role("button", name="Copy")
    button.click()
    expect(message(page, 1).get_by_role("button", name="Copied")).to_be_focused()
    assert page.evaluate("window.real.readText()") == "Line 1\nLine 2"
    assert page.locator("body > textarea").count() == 0


@pytest.mark.extended
def test_failed_answer_is_asked_again(tab: Tab) -> None:
    page = tab.page
    tab.allowed = ("503",)
    refusal = {
        "error": {"code": "overloaded", "message": "queue: expected room, got none; try later", "request_id": "r1"}
    }
    page.route(f"**{CHAT}", lambda route: route.fulfill(status=503, json=refusal), times=1)
    page.get_by_role("button", name="Send", exact=True).click()
    first = message(page, 1)
    expect(first.get_by_role("alert")).to_contain_text("queue: expected room")
    expect(first.get_by_role("alert").get_by_role("link", name="r1")).to_have_attribute("href", "#/requests/r1")
    expect(first.get_by_role("button", name="Copy")).to_have_count(0)
    first.get_by_role("button", name="Regenerate").click()
    expect_answers(page, 1)
    expect(first.get_by_role("alert")).to_have_count(0)


@pytest.mark.extended
@pytest.mark.parametrize("tool", ["chat", "completion"])
def test_default_length_fits_beside_long_prompt(open_tab: Open, playground: RunningServer, tool: str) -> None:
    tab = open_tab(f"{playground.url}/#/playground/writer?tool={tool}")
    tab.allowed = ("400",)
    page = tab.page
    (context,) = {
        each["max_tokens"] for each in playground.client.get("/models/writer").json()["version_details"].values()
    }
    expect(page.get_by_label("Max tokens")).to_have_value(str(context // 2))
    text = "one two three four " * (context // 6)
    label, button = ("Message", "Send") if tool == "chat" else ("Prompt", "Continue")
    prompt = {"messages": [{"role": "user", "content": text}]} if tool == "chat" else {"prompt": text}
    count = playground.client.post("/v1/tokenize", json={"model": "writer", **prompt}).json()["count"]
    assert context // 2 < count < context
    page.get_by_label(label, exact=True).fill(text)
    with page.expect_request("**/completions") as request:
        page.get_by_role("button", name=button, exact=True).click()
    assert body_of(request.value)["max_tokens"] == context - count
    expect(page.locator('.pg-figures[data-phase="done"]')).to_be_visible()
    # The code is that of the request, with the same number.
    expect(page.locator(".pg-snippet")).to_contain_text(f'"max_tokens": {context - count}')
    # A number of the person is sent as it is.
    page.get_by_label("Max tokens").fill(str(context))
    if tool == "chat":
        page.get_by_role("button", name="Regenerate").click()
    else:
        page.get_by_role("button", name=button, exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("max_tokens: expected 1 to")


@pytest.mark.extended
def test_prompt_beyond_context_is_refused_with_reason(open_tab: Open, playground: RunningServer) -> None:
    tab = open_tab(f"{playground.url}/#/playground/writer")
    tab.allowed = ("400",)
    tab.page.get_by_label("Message", exact=True).fill("one two three four " * 500)
    tab.page.get_by_role("button", name="Send", exact=True).click()
    expect(tab.page.get_by_role("alert")).to_contain_text("the model's context for prompt and text")


@pytest.mark.extended
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (360, "dark"), (1280, "light"), (1280, "dark")])
def test_chat_is_accessible_and_fits(open_tab: Open, playground: RunningServer, width: int, scheme: str) -> None:
    tab = open_tab(f"{playground.url}/#/playground/writer", width=width, scheme=scheme)
    page = tab.page
    is_wide = width > 1020
    answer_with(page, *[stream_of({"reasoning_content": "r" * 200}, {"content": "c" * 200})] * 2)
    ask(page, "q" * 200, 1)
    ask(page, "Next?", 2)
    conversations, options = (page.locator("summary", has_text=each) for each in ("Conversations", "Options"))
    for summary, control in (
        (conversations, page.get_by_label("Keep conversations in this browser")),
        (options, page.get_by_label("Max tokens")),
    ):
        expect(control).to_be_visible(visible=is_wide)
        summary.press("Space")
        expect(control).to_be_visible(visible=not is_wide)
        summary.press("Enter")
        expect(control).to_be_visible(visible=is_wide)
    if not is_wide:
        conversations.click()
        options.click()
    message(page, 1).locator(".pg-thoughts summary").click()
    message(page, 1).get_by_role("button", name="Edit").click()
    assert (tab.serious_findings(), tab.overflow()) == ([], 0)
    assert page.locator(".pg-log").evaluate("log => log.scrollWidth - log.clientWidth") == 0
    page.get_by_role("button", name="Delete all").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert (tab.serious_findings(), tab.overflow()) == ([], 0)


@pytest.mark.extended
def test_options_fold_when_window_becomes_narrow(open_tab: Open, playground: RunningServer) -> None:
    tab = open_tab(f"{playground.url}/#/playground/writer?tool=completion", width=360)
    length = tab.page.get_by_label("Max tokens")
    expect(tab.page.get_by_text("Options", exact=True)).to_be_visible()
    expect(length).to_be_hidden()
    tab.page.set_viewport_size({"width": 1280, "height": 800})
    expect(length).to_be_visible()
    tab.page.set_viewport_size({"width": 700, "height": 800})
    expect(length).to_be_hidden()


@pytest.mark.extended
def test_log_follows_text_only_at_its_end(tab: Tab) -> None:
    page = tab.page
    answer_with(page, *[stream_of({"content": "Line\n" * 60})] * 2)
    ask(page, "First?", 1)
    log = page.get_by_role("log")
    at_end = "log => log.scrollHeight - log.scrollTop - log.clientHeight < 2"
    assert log.evaluate(at_end)
    log.evaluate("log => { log.scrollTop = 0; }")
    page.get_by_label("Message", exact=True).fill("Typed while reading")
    assert log.evaluate("log => log.scrollTop") == 0
    ask(page, "Second?", 2)
    assert log.evaluate(at_end)
