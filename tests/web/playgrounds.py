"""The server of the tests of the playground, and calls of the page's modules."""

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from tests.e2e.configs import save_onnx_classifier
from tests.e2e.server import MODELS
from tests.support.models import onnx_graphs
from tests.support.models.embedded_encoders import save_first_layers

LAYERS = 1
"""Of the encoder that runs in the page: MiniLM's own weights and tokenizer, with one of its six layers."""

PIPELINES = """
[[pipelines]]
name = "unit"
inputs = ["text"]
outputs = { embeddings = "unit" }
steps = [
    { name = "embed", model = "encoder", normalize = false, inputs = { text = "text" } },
    { name = "unit", builtin = "normalize", inputs = { values = "embed" } },
]
[[pipelines]]
name = "odds"
inputs = ["x"]
outputs = { odds = "odds" }
steps = [
    { name = "same", model = "pictures", inputs = { x = "x" } },
    { name = "odds", builtin = "softmax", inputs = { values = "same" } },
]
"""

HOLD_CHAT = """kept => {
  const original = window.fetch;
  window.fetch = async (url, options) => {
    const response = await original(url, options);
    if (!String(url).includes("/chat/completions")) return response;
    window.fetch = original;
    const reader = response.body.getReader();
    let events = 0;
    const body = new ReadableStream({
      start(controller) { options.signal.addEventListener("abort", () => controller.error(options.signal.reason)); },
      async pull(controller) {
        window.failChat = () => controller.error(new TypeError("network error"));
        if (events === kept) return new Promise(() => {});
        const { value } = await reader.read();
        let end = 0;
        while (end < value.length && events < kept) if (value[end++] === 10 && value[end - 2] === 10) events += 1;
        controller.enqueue(value.slice(0, end));
      },
    });
    return new Response(body, { status: response.status, headers: response.headers });
  };
}"""
"""Let the page get this number of events of the next chat, and no more until it is stopped.

A fast machine writes the whole text before a click.
"""


def playground_entries(folder: Path) -> str:
    """Save and name a model of every task: digits, an encoder in fp32 and int8, classifiers, pictures, and a writer;
    and two pipelines of them.
    """
    encoder = save_first_layers(MODELS / "minilm-onnx", folder / "encoder", layers=LAYERS)
    for name, graph in (
        ("pictures", onnx_graphs.identity("float32", ("n", 3, 8, 8))),
        ("numbers", onnx_graphs.identity("int64", ("n", "m"))),
        ("names", onnx_graphs.identity("string", ("n",))),
        ("maps", onnx_graphs.zip_map()),
    ):
        (folder / name).mkdir()
        onnx_graphs.save(graph, folder / name)
    onnx = [
        ("digits", MODELS / "digits", "downloadable = true"),
        ("encoder", encoder, "downloadable = true"),
        ("encoder-int8", encoder, 'downloadable = true\nquantized = true\nload = "lazy"'),
        ("pictures", folder / "pictures", "downloadable = true"),
        ("numbers", folder / "numbers", ""),
        ("names", folder / "names", ""),
        ("maps", folder / "maps", 'load = "lazy"'),
        ("classify", save_onnx_classifier(folder / "classify", ("fast", "slow", "late")), ""),
        ("cross-encoder", save_onnx_classifier(folder / "cross-encoder", ("LABEL_0",)), ""),
    ]
    entries = "".join(
        f'[[models.onnx_models]]\nname = "{name}"\npath = "{path}"\n{more}\n' for name, path, more in onnx
    )
    writers = "".join(
        f'[[models.torch_models]]\nname = "{name}"\npath = "{MODELS / "tiny-llama"}"\nkernels = "plain"\n'
        for name in ("writer", "writer-2")
    )
    return f'[models]\ncache_dir = "{folder / "cache"}"\n{entries}{writers}{PIPELINES}'


def run_module(page: Page, path: str, body: str, value: object = None) -> Any:
    """Import a module of the page and return `body(module, value)`, an arrow function in JavaScript.

    `path`: below the page's folder, as `playground/npy.js`.
    """
    script = f"""async (value) => {{
        const base = document.querySelector('script[type="module"]').src.replace(/main\\.js$/, "");
        return ({body})(await import(base + {path!r}), value);
    }}"""
    return page.evaluate(script, value)
