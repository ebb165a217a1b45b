"""Write the pictures of the page for the manual: a real server with the embedded models, some load, a real browser.

`make docs` runs `python -m tests.manual.screenshots`. It makes them again only if the files of the page have changed.
"""

import hashlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
from playwright.sync_api import Page, sync_playwright

from tests.e2e.configs import EMBEDDED
from tests.e2e.server import MODELS, ROOT, RunningServer, serving
from tests.support.chromium import CHROMIUM
from tests.web.conftest import versioned_entry
from tests.web.runtime import is_present
from tests.web.tabs import Scheme, chromium_options

WEB = ROOT / "app" / "web"
IMAGES = ROOT / "docs" / "images"
RECORD = IMAGES / "page.sha256"
"""The hash of the files of the page that the pictures show."""

SHAPES = f'[[models.onnx_models]]\nname = "shapes"\npath = "{MODELS / "shapes"}"\n'

LOAD_S = 60.0
PIXELS: dict[str, object] = {"batch_size": 1, "input_data": [0, 0, 9, 16, 10, 1, 0, 0] * 8}
MESSAGES: dict[str, object] = {
    "messages": [{"role": "user", "content": "What is a list?"}],
    "max_tokens": 24,
    "temperature": 0,
}


class Shot(NamedTuple):
    """A picture. `prepare`: what is done on the page before it is taken."""

    name: str
    view: str
    width: int
    height: int
    scheme: Scheme
    prepare: Callable[[Page], None]


def nothing(page: Page) -> None:
    """Wait for the view and its first values."""
    page.locator("h1").wait_for()
    page.locator(".busy").wait_for(state="hidden")


def open_first_request(page: Page) -> None:
    page.get_by_label("Model").select_option("tiny-llama")
    page.locator("tbody tr button").first.click()
    page.locator(".phases").wait_for()


def start_canary(page: Page) -> None:
    form = page.get_by_role("form", name="Canary")
    form.get_by_role("slider").fill("20")
    form.get_by_role("button", name="Start canary").click()
    form.get_by_role("button", name="End canary").wait_for()


def compare_chats(page: Page) -> None:
    page.get_by_label("Max tokens").fill("40")
    page.get_by_label("Temperature").fill("0.3")
    page.get_by_label("Compare with").select_option("tiny-llama")
    page.get_by_role("button", name="Send").click()
    page.locator('.pg-figures[data-phase="done"]').nth(1).wait_for()
    page.locator(".pg-token").nth(2).focus()


def compare_texts(page: Page) -> None:
    page.get_by_role("button", name="Compare").click()
    page.locator(".pg-matrix").wait_for()


def draw_digit(page: Page) -> None:
    page.get_by_role("button", name="Draw the example of 3").click()
    page.locator(".waterfall").wait_for()


def classify_pictures(page: Page) -> None:
    page.get_by_label("Pictures", exact=True).set_input_files(MODELS / "shapes" / "example.jpg")
    page.get_by_role("button", name="Draw an example").click()
    page.get_by_role("button", name="Classify").click()
    page.locator(".waterfall").wait_for()


def run_in_browser(page: Page) -> None:
    page.get_by_role("button", name="Load the model").click()
    page.get_by_role("button", name="Run both").click()
    page.locator(".pg-verdict").wait_for()


SHOTS = (
    Shot("page-overview", "#/overview", 1200, 1000, "light", nothing),
    Shot("page-overview-narrow", "#/overview", 360, 780, "dark", nothing),
    Shot("page-models", "#/models", 1200, 720, "light", nothing),
    Shot("page-model", "#/models/two-versions", 1200, 900, "dark", start_canary),
    Shot("page-requests", "#/requests", 1200, 740, "light", open_first_request),
    Shot("playground-chat", "#/playground/tiny-llama", 1200, 800, "light", compare_chats),
    Shot("playground-similarity", "#/playground/minilm-onnx", 1200, 860, "light", compare_texts),
    Shot("playground-pictures", "#/playground/shapes", 1200, 860, "light", classify_pictures),
    Shot("playground-draw", "#/playground/digits", 1200, 860, "dark", draw_digit),
    Shot("playground-browser", "#/playground/minilm-onnx?tool=browser", 1200, 860, "light", run_in_browser),
)


def main() -> int:
    """Write the pictures whose page has changed. Return the exit status."""
    digest = hash_of_page()
    if RECORD.is_file() and RECORD.read_text(encoding="utf-8").strip() == digest:
        print("the pictures of the page are those of its files")
        return 0
    if CHROMIUM is None:
        print("chromium is missing: the pictures of the page stay as they are")
        return 0
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = (EMBEDDED + SHAPES).replace("path =", "downloadable = true\npath =") + versioned_entry(
            folder, "latest"
        )
        config = config.replace(str(folder), ".")  # a path of this machine is not for the manual
        with serving(folder, f'[models]\nroots = ["{MODELS}"]\n{config}') as server:
            server.wait_ready()
            with load(server):
                time.sleep(LOAD_S)
                take(server, CHROMIUM)
    RECORD.write_text(f"{digest}\n", encoding="utf-8")
    return 0


def take(server: RunningServer, chromium: str) -> None:
    """Take every picture of a server."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=chromium_options())
        for shot in SHOTS:
            if shot.prepare is run_in_browser and not is_present():
                print("onnxruntime-web is missing (make web): the picture of a model in the page stays as it is")
                continue
            page = browser.new_page(viewport={"width": shot.width, "height": shot.height}, color_scheme=shot.scheme)
            page.goto(f"{server.url}/{shot.view}")
            page.locator(".connection-good").wait_for()
            nothing(page)
            shot.prepare(page)
            page.mouse.move(0, 0)
            # One more sample, so that charts and tables are complete.
            page.wait_for_timeout(2_500)
            page.screenshot(path=IMAGES / f"{shot.name}.png")
            page.close()
        browser.close()


@contextmanager
def load(server: RunningServer) -> Iterator[None]:
    """Send requests of all kinds from a few threads until the end of the block."""
    is_over = threading.Event()

    def call(path: str, body: dict[str, object], pause_s: float) -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            while not is_over.wait(pause_s):
                client.post(path, json=body)

    with ThreadPoolExecutor(max_workers=7) as threads:
        calls: tuple[tuple[str, dict[str, object], float], ...] = (
            ("/models/digits/infer", PIXELS, 0.01),
            ("/models/digits/infer", PIXELS, 0.02),
            ("/models/digits/infer", {"input_data": [1, 2, 3]}, 7.0),
            ("/models/minilm-onnx/infer", {"text": ["A roundhouse is where engines wait."]}, 0.15),
            ("/v1/embeddings", {"model": "minilm", "input": "Locomotives are kept in a shed."}, 0.3),
            ("/models/tiny-llama/infer", MESSAGES, 0.4),
            ("/models/two-versions/infer", {"input_data": [1.0] * server_side(server)}, 0.1),
        )
        for path, body, pause_s in calls:
            threads.submit(call, path, body, pause_s)
        try:
            yield
        finally:
            is_over.set()


def server_side(server: RunningServer) -> int:
    """Return how many numbers the model with two versions reads."""
    shape: list[int] = server.client.get("/models/two-versions").json()["inputs"][0]["shape"]
    return abs(shape[-1])


def hash_of_page() -> str:
    """Return a hash of all files of the page, except those that `make web` fetches."""
    digest = hashlib.sha256()
    for file in sorted(WEB.rglob("*")):
        if file.is_file() and not file.is_relative_to(WEB / "runtime"):
            digest.update(f"{file.relative_to(WEB)}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
