"""A server of models that see, and requests with images for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.server import MODELS, WAIT_S, RunningServer, serving
from tests.frameworks.pytorch.generation.vision.seeing import IMAGES, Reference, conversation, data_url
from tests.support.models.vision.catalogue import MAKERS

TOKENS = 8


@contextmanager
def serving_vision(folder: Path, families: Sequence[str]) -> Iterator[tuple[RunningServer, dict[str, Any]]]:
    """Yield a server, and the greedy texts of transformers' `generate` after 0 to 3 images, by model.

    `families`: those of the models, `smolvlm` among them. Further models are `apart`, `bounded` and `blind`, which are
    smolvlm with other settings, and `texts`, which reads no images.
    """
    entries, expected = "", {}
    for family in families:
        path = folder / family
        path.mkdir()
        MAKERS[family](path)
        entries += _entry(family, path)
        reference = Reference(path)
        expected[family] = [_text_of(path, reference.text(conversation(IMAGES[:count]))[1]) for count in range(4)]
    entries += _entry("apart", folder / "smolvlm", 'isolation = "process"')
    entries += _entry("bounded", folder / "smolvlm", "max_images = 2\nmax_image_pixels = 10000")
    entries += _entry("blind", folder / "smolvlm", "vision = false")
    entries += f'[[models.torch_models]]\nname = "texts"\npath = "{MODELS / "tiny-llama"}"\n'
    entries += '[server]\nmedia_hosts = ["127.0.0.0/8"]\n'
    with serving(folder, entries) as running:
        yield running.wait_ready(), expected
        running.check_log()


def _entry(name: str, path: Path, more: str = "") -> str:
    return f'[[models.torch_models]]\nname = "{name}"\npath = "{path}"\ndtype = "f32"\nmax_batch_size = 4\n{more}\n'


def _text_of(folder: Path, token_ids: list[int]) -> str:
    from tokenizers import Tokenizer

    return str(Tokenizer.from_file(str(folder / "tokenizer.json")).decode(token_ids))


def openai_message(count: int) -> dict[str, Any]:
    """Return the message of `conversation` with so many images."""
    parts: list[dict[str, Any]] = []
    for number, data in enumerate(IMAGES[:count]):
        parts.append({"type": "image_url", "image_url": {"url": data_url(data), "detail": "high"}})
        parts.append({"type": "text", "text": f"one {number}"})
    return {"role": "user", "content": [*parts, {"type": "text", "text": " tell me"}]}


def post(server: RunningServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=WAIT_S, trust_env=False, verify=False)


def post_form(server: RunningServer, model: str, files: Sequence[bytes], **texts: str) -> httpx.Response:
    """Send a form; the text is greedy."""
    parts = [("images", ("a.png", data, "image/png")) for data in files]
    data = {"temperature": "0", "max_tokens": str(TOKENS), **texts}
    url = f"{server.url}/models/{model}/infer"
    return httpx.post(url, files=parts, data=data, timeout=WAIT_S, trust_env=False, verify=False)
