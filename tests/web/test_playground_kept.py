"""The conversations that the browser keeps: their bounds, damaged ones, a storage that is full, blocked or off."""

import json
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.server import RunningServer
from tests.web.playgrounds import HOLD_CHAT, run_module
from tests.web.tabs import Open, Tab

pytestmark = pytest.mark.extended

STORE = "playground/conversation-store.js"
KEY = "rh_0123456789ab_key-that-is-never-kept"
BLOCKED = """Object.defineProperty(window, "localStorage", {
    get() { throw new DOMException("blocked", "SecurityError"); }
})"""
FULL = """Storage.prototype.setItem = () => { throw new DOMException("full", "QuotaExceededError"); }"""
TURN = {"user": "Hello?", "texts": {}}
TEXT: dict[str, Any] = {
    "phase": "done",
    "choices": [{"text": "Yes.", "reasoning": "", "calls": [], "finish": "stop"}],
    "tokens": 2,
    "error": None,
    "firstTokenMs": 1.5,
    "totalMs": 3,
    "isStream": True,
}


@pytest.fixture
def tab(open_tab: Open, playground: RunningServer) -> Tab:
    return open_tab(f"{playground.url}/#/playground/writer")


def conversation(number: int, **changes: Any) -> dict[str, Any]:
    """Return a conversation as the store takes it. `number`: of its id, and its age: 1 is the oldest."""
    whole = {
        "id": f"c{number}", "model": "writer", "updated": number, "system": "", "second": None, "options": {},
        "turns": [{"user": f"Question {number}", "texts": {}}],
    }  # fmt: skip
    return {**whole, **changes}


def entry(value: dict[str, Any]) -> tuple[str, str]:
    """Return key and value of an entry of the storage."""
    return f"roundhouse.chat / {value['id']}", json.dumps(value)


def fill(page: Page, entries: list[tuple[str, str]]) -> None:
    page.evaluate("all => all.forEach(([key, value]) => localStorage.setItem(key, value))", entries)


def kept_items(page: Page) -> Locator:
    return page.get_by_role("list", name="Kept conversations").get_by_role("listitem")


def ask(page: Page, text: str) -> None:
    page.get_by_label("Max tokens").fill("4")
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator('.pg-figures[data-phase="done"]').last).to_be_visible()


def test_oldest_conversations_are_dropped_beyond_bounds(tab: Tab) -> None:
    body = """({ saveConversation, listConversations }, [many, large]) => {
        many.forEach(saveConversation);
        const ids = () => listConversations("writer").map(({ id }) => id);
        const before = ids();
        const kept = large.map((each) => saveConversation(each));
        const bytes = Object.entries(localStorage).flat().reduce((sum, text) => sum + 2 * text.length, 0);
        return [before, kept, ids(), bytes];
    }"""
    many = [conversation(number) for number in range(1, 103)]
    half_a_megabyte = "x" * 256 * 1024
    large = [conversation(number, system=half_a_megabyte) for number in range(200, 210)]
    large.append(conversation(300, system=half_a_megabyte * 8))
    before, kept, ids, used = run_module(tab.page, STORE, body, [many, large])
    assert before == [f"c{number}" for number in range(102, 2, -1)]
    # The last one alone is above the bound: it drops no other.
    assert kept == [True] * 10 + [False]
    assert ids == [f"c{number}" for number in range(209, 202, -1)]
    assert used <= 4 * 1024 * 1024


def test_full_storage_drops_only_what_helps(tab: Tab) -> None:
    body = """({ saveConversation, listConversations }, all) => {
        const original = Storage.prototype.setItem;
        const ids = () => listConversations("writer").map(({ id }) => id);
        all.slice(0, 3).forEach(saveConversation);
        const fullBelow = (count) => {
            Storage.prototype.setItem = function (key, value) {
                if (key.endsWith("c9") && this.length >= count) throw new DOMException("full", "QuotaExceededError");
                original.call(this, key, value);
            };
        };
        const results = [];
        for (const count of [0, 3]) {
            fullBelow(count);
            results.push([saveConversation(all[3]), ids()]);
        }
        Storage.prototype.setItem = original;
        return results;
    }"""
    value = [conversation(number) for number in (1, 2, 3, 9)]
    refused, saved = run_module(tab.page, STORE, body, value)
    assert refused == [False, ["c3", "c2", "c1"]]
    assert saved == [True, ["c9", "c3", "c2"]]


DAMAGED: dict[str, Any] = {
    "no JSON": "{",
    "no object": "[]",
    "no turns": {"turns": []},
    "turn of another type": {"turns": ["Hello?"]},
    "turn without question": {"turns": [{"texts": {}}]},
    "question and results": {"turns": [{**TURN, "results": {"left": []}}]},
    "text without choices": {"turns": [{**TURN, "texts": {"left": {**TEXT, "choices": None}}}]},
    "phase that runs": {"turns": [{**TURN, "texts": {"left": {**TEXT, "phase": "running"}}}]},
    "call without function": {
        "turns": [{**TURN, "texts": {"left": {**TEXT, "choices": [{**TEXT["choices"][0], "calls": [{"id": "a"}]}]}}}]
    },
    "results that are no list": {"turns": [{"results": {"left": {}}, "texts": {}}]},
    "time as text": {"updated": "today"},
    "system message of another type": {"system": None},
    "second model of another type": {"second": 3},
    "id of another entry": {"id": "other"},
}


def test_damaged_conversations_are_ignored(tab: Tab) -> None:
    page = tab.page
    whole = conversation(1, turns=[{**TURN, "texts": {"left": TEXT}}], options={"seed": 5, "top_k": "7", "no": "1"})
    entries = [entry(whole)]
    for number, change in enumerate(DAMAGED.values(), 2):
        key, _ = entry(conversation(number))
        entries.append((key, change if isinstance(change, str) else json.dumps(conversation(number) | change)))
    fill(page, entries)
    page.reload()
    expect(kept_items(page)).to_have_count(1)
    kept_items(page).get_by_role("button").first.click()
    expect(page.locator(".pg-reply")).to_contain_text("Yes.")
    expect(page.locator(".pg-figures")).to_contain_text("2 tokens")
    # Of the options, those that the form has.
    expect(page.get_by_label("Top k")).to_have_value("7")
    expect(page.get_by_label("Seed")).to_have_value("")
    ask(page, "More?")
    expect(kept_items(page)).to_have_count(1)


def test_servers_and_models_have_their_own_conversations(tab: Tab) -> None:
    page = tab.page
    other_server = ("roundhouse.chat /below/ c3", json.dumps(conversation(3)))
    fill(page, [entry(conversation(1)), entry(conversation(2, model="writer-2")), other_server])
    page.reload()
    expect(kept_items(page)).to_have_count(1)
    expect(kept_items(page)).to_contain_text("Question 1")
    page.get_by_role("button", name="Delete Question 1").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(kept_items(page)).to_have_count(0)
    expect(page.get_by_text("Conversations", exact=True)).to_be_visible()
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    tab.show("#/playground/writer-2")
    expect(kept_items(page)).to_contain_text("Question 2")
    page.get_by_label("Keep conversations in this browser").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete and keep none").click()
    expect(kept_items(page)).to_have_count(0)
    assert page.evaluate("Object.keys(localStorage).sort()") == [other_server[0], "roundhouse.chats /"]


def test_switched_off_browser_keeps_nothing(tab: Tab) -> None:
    page = tab.page
    ask(page, "Kept?")
    expect(kept_items(page)).to_have_count(1)
    keep = page.get_by_label("Keep conversations in this browser")
    keep.click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    expect(keep).to_be_checked()
    expect(kept_items(page)).to_have_count(1)
    keep.click()
    page.get_by_role("dialog").get_by_role("button", name="Delete and keep none").click()
    expect(keep).not_to_be_checked()
    ask(page, "Not kept?")
    expect(page.locator(".pg-turn")).to_have_count(2)
    stored = "[Object.entries(localStorage), Object.entries(sessionStorage)]"
    assert page.evaluate(stored) == [[["roundhouse.chats /", "off"]], []]
    page.reload()
    expect(keep).not_to_be_checked()
    expect(page.get_by_text("Write a message to writer.")).to_be_visible()
    # Switched on again, it keeps the conversation that is shown.
    ask(page, "Shown?")
    keep.click()
    expect(kept_items(page)).to_contain_text("Shown?")
    page.reload()
    expect(page.locator(".pg-user")).to_have_text("You: Shown?")


@pytest.mark.parametrize("script", [BLOCKED, FULL], ids=["blocked", "full"])
def test_chat_works_without_room_in_storage(open_tab: Open, playground: RunningServer, script: str) -> None:
    tab = open_tab(f"{playground.url}/#/playground", is_fresh=True)
    page = tab.page
    page.add_init_script(script)
    page.reload()
    tab.show("#/playground/writer")
    ask(page, "First?")
    ask(page, "Second?")
    expect(page.locator('.pg-figures[data-phase="done"]')).to_have_count(2)
    if script == BLOCKED:
        expect(page.get_by_text("The browser allows this page no storage.")).to_be_visible()
        expect(page.get_by_label("Keep conversations in this browser")).to_have_count(0)
    else:
        expect(page.get_by_role("alert")).to_contain_text("The browser has no room for this conversation.")
    page.get_by_role("button", name="New conversation").click()
    expect(page.get_by_text("Write a message to writer.")).to_be_visible()


def test_key_is_never_in_kept_conversations(open_tab: Open, playground: RunningServer) -> None:
    tab = open_tab(f"{playground.url}/#/playground/writer", key=KEY)
    page = tab.page
    sent: list[str | None] = []
    page.on("request", lambda request: sent.append(request.headers.get("authorization")))
    ask(page, "Hello?")
    expect(kept_items(page)).to_have_count(1)
    assert f"Bearer {KEY}" in sent
    assert KEY not in page.evaluate("JSON.stringify(localStorage)")


def test_text_that_runs_is_kept_as_stopped(tab: Tab) -> None:
    page = tab.page
    page.evaluate(HOLD_CHAT, 8)
    page.get_by_label("Max tokens").fill("400")
    page.get_by_text("Ignore eos").click()
    page.get_by_label("Message", exact=True).press("Enter")
    expect(page.locator(".pg-token").nth(3)).to_be_visible()
    text = page.locator(".pg-text").inner_text()
    page.reload()
    expect(page.locator(".pg-figures")).to_contain_text("stopped by you")
    # The page may have got the last of its 8 events after the text was read.
    assert page.locator(".pg-text").inner_text().startswith(text)
    expect(page.get_by_label("Max tokens")).to_have_value("400")
    # A deleted conversation does not return when its text ends.
    page.evaluate(HOLD_CHAT, 8)
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".pg-token").nth(3)).to_be_visible()
    page.get_by_role("button", name=f"Delete {page.locator('.pg-user').inner_text().splitlines()[-1]}").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("Write a message to writer.")).to_be_visible()
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    assert page.evaluate("localStorage.length") == 0


def test_error_behind_leaving_is_not_kept(tab: Tab) -> None:
    page = tab.page
    page.evaluate(HOLD_CHAT, 8)
    page.get_by_label("Max tokens").fill("400")
    page.get_by_label("Message", exact=True).press("Enter")
    expect(page.locator(".pg-token").nth(3)).to_be_visible()
    page.evaluate("""async () => {
      dispatchEvent(new Event("pagehide"));
      failChat();
      await new Promise((resolve) => setTimeout(resolve, 200));
    }""")
    assert "network error" not in page.evaluate("JSON.stringify(localStorage)")
    page.reload()
    expect(page.locator(".pg-figures")).to_contain_text("stopped by you")


def test_other_tab_shows_new_conversation(tab: Tab, playground: RunningServer) -> None:
    other = tab.page.context.new_page()
    other.goto(f"{playground.url}/#/playground/writer")
    expect(other.get_by_text("Write a message to writer.")).to_be_visible()
    ask(tab.page, "From here?")
    expect(kept_items(other)).to_contain_text("From here?")
    other.close()
