"""Measure a language model that sees: beside `transformers serve`, beside its text model alone, and running texts while
images arrive. The model has the shape of SmolVLM-256M with random weights; an image is one tile.
"""

import asyncio
import base64
import gc
import io
import itertools
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
import orjson
from PIL import Image

from tools.bench.peers.start import enter, enter_peer, transformers_serve
from tools.bench.shared.language_models import CONTEXT_TOKENS, make_tokenizer, mixed_prompts, prompt
from tools.bench.shared.load import closed_loop, request_of
from tools.bench.shared.rounds import in_turn, num_rounds, ratio
from tools.bench.shared.servers import RunningServer
from tools.bench.shared.streaming import Streamed, stream
from tools.bench.shared.table import Row
from tools.bench.text_generation.generation import serving
from tools.bench.text_generation.streams import Running, percentile

LABEL = "SmolVLM of 256 M parameters' shape"
SIDE = 512
CALLERS = 8
NEW_TOKENS = 32
_QUESTION_TOKENS = 20
_ROUNDS = 3
_REQUESTS, _PEER_REQUESTS, _TEXTS = 24, 16, 96
_QUIET_S, _SECONDS = 15.0, 40.0
# llama.cpp reads the last one as one token.
_TOKENS = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "\n\n")
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}:{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def measure_vision(folder: Path) -> list[Row]:
    """Measure on all cores, shared with the load."""
    seeing, texts = save_seeing(folder / "vision")
    return [*_beside_peer(folder, seeing), _beside_text_model(folder, seeing, texts), *_beside_texts(folder, seeing)]


@dataclass(frozen=True, slots=True)
class Asked:
    """A server and the name of its model. `fields`: further members of each request."""

    server: RunningServer
    model: str
    fields: dict[str, Any]

    def request(self, text: str, image: bytes | None, tokens: int = NEW_TOKENS, **more: Any) -> bytes:
        """Return a greedy POST to /v1/chat/completions."""
        return request_of("/v1/chat/completions", self.body(text, image, tokens, **more))

    def body(self, text: str, image: bytes | None, tokens: int = NEW_TOKENS, **more: Any) -> bytes:
        content: list[dict[str, Any]] = []
        if image is not None:
            url = f"data:image/png;base64,{base64.b64encode(image).decode()}"
            content.append({"type": "image_url", "image_url": {"url": url}})
        content.append({"type": "text", "text": text})
        body = {"model": self.model, "messages": [{"role": "user", "content": content}], "max_tokens": tokens}
        return orjson.dumps(body | self.fields | {"temperature": 0} | more)

    def text(self, question: str, image: bytes) -> str:
        """Return the answer to a question about an image."""
        with self.server.awake():
            answer = httpx.post(
                f"http://127.0.0.1:{self.server.port}/v1/chat/completions",
                content=self.body(question, image),
                headers={"content-type": "application/json"},
                trust_env=False,
                timeout=120,
            )
        return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])

    def rate(self, count: int, seed: int, images: Iterator[bytes] | None) -> float:
        """Return the tokens per second of all callers; no prompt and no image occurs twice.

        Images are measured from the first request to the last answer: those of a warm-up would be computed before the
        clock starts.
        """
        warm = CALLERS if images is None else 0
        prompts = mixed_prompts(count + warm, seed)
        requests = [self.request(each, None if images is None else next(images)) for each in prompts]
        with self.server.awake():
            return count * NEW_TOKENS / asyncio.run(closed_loop(self.server.port, requests, CALLERS, count, warm))


def image_files() -> Iterator[bytes]:
    """Yield files of random pixels, each once."""
    for seed in itertools.count():
        pixels = np.random.default_rng(seed).integers(0, 256, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).resize((SIDE, SIDE)).save(file, "PNG")
        yield file.getvalue()


def _beside_peer(folder: Path, model: Path) -> list[Row]:
    images, seeds = image_files(), itertools.count(1)
    with ExitStack() as stack:
        ours = Asked(enter(stack, serving(folder, model)), "llama", {"ignore_eos": True})
        measures: dict[str, Callable[[], float]] = {"ours": lambda: ours.rate(_REQUESTS, next(seeds), images)}
        peer = enter_peer(stack, "transformers serve", transformers_serve(model, continuous_batching=False))
        if peer is not None:
            other = Asked(peer, str(model), {})
            measures["peer"] = lambda: other.rate(_PEER_REQUESTS, next(seeds), images)
        rates = in_turn(measures, num_rounds(_ROUNDS))
        again = _second_question(ours, next(images))
    found = f"{median(rates['ours']):.1f} tokens/s"
    if peer is not None:
        found += f", {ratio(rates['ours'], rates['peer']):.2f} times transformers serve"
    compared = f"transformers serve {median(rates['peer']):.1f} tokens/s" if peer is not None else "no peer runs here"
    what = f"{LABEL}, f32: {CALLERS} callers, an image of {SIDE} x {SIDE} each, {NEW_TOKENS} new tokens"
    return [Row(what, found, "≥ 2.5 times", compared), again]


def _second_question(ours: Asked, image: bytes) -> Row:
    """Compare the times to first token of two questions about one image."""
    times: list[float] = []
    with ours.server.awake():
        for seed in range(2):
            text = prompt(_QUESTION_TOKENS, random.Random(seed))
            probe = Streamed()
            asyncio.run(stream(ours.server.port, ours.request(text, image, 2, stream=True), probe))
            times.append(probe.first_s)
    first, second = times
    return Row(
        "the same: time to first token of a second question about the same image",
        f"{second / first:.3f} of the first one's",
        "≤ 0.15",
        f"{first * 1e3:.0f} ms, then {second * 1e3:.0f} ms",
    )


def _beside_text_model(folder: Path, seeing: Path, texts: Path) -> Row:
    seeds = itertools.count(1)
    with ExitStack() as stack:
        ways = {
            name: Asked(enter(stack, serving(folder, model)), "llama", {"ignore_eos": True})
            for name, model in (("seeing", seeing), ("texts", texts))
        }
        seed = {name: itertools.count(next(seeds)) for name in ways}
        rates = in_turn(
            {name: lambda name=name: ways[name].rate(_TEXTS, next(seed[name]), None) for name in ways},  # type: ignore[misc]
            num_rounds(2 * _ROUNDS + 1),
        )
    return Row(
        f"{LABEL}, f32: texts alone, {CALLERS} callers, beside its text model alone",
        f"{ratio(rates['seeing'], rates['texts']):.3f} times",
        "≥ 0.98 times",
        f"{median(rates['seeing']):.0f} and {median(rates['texts']):.0f} tokens/s",
    )


def _beside_texts(folder: Path, model: Path) -> list[Row]:
    with serving(folder, model) as server:
        gc.disable()  # the load's own pauses are not the server's
        try:
            return asyncio.run(_texts_beside_images(Asked(server, "llama", {"ignore_eos": True})))
        finally:
            gc.enable()


async def _texts_beside_images(ours: Asked) -> list[Row]:
    running = Running(ours.server.port, lambda text: ours.request(text, None, CONTEXT_TOKENS // 2, stream=True), [])
    images = image_files()
    async with asyncio.TaskGroup() as group:
        for text in mixed_prompts(CALLERS, 0):
            group.create_task(running.keep_one(text))
        await asyncio.sleep(5)
        quiet_from_s = time.perf_counter()
        await asyncio.sleep(_QUIET_S)
        quiet = running.gaps_s(quiet_from_s)
        from_s, firsts_s = time.perf_counter(), []
        while time.perf_counter() - from_s < _SECONDS:
            probe = Streamed()
            await stream(ours.server.port, ours.request("what is it", next(images), 1, stream=True), probe)
            firsts_s.append(probe.first_s)
        gaps = running.gaps_s(from_s)
        running.is_stopped = True
    own, alone = percentile(gaps, 0.99), percentile(quiet, 0.99)
    return [
        Row(
            f"{LABEL}, f32: p99 between tokens of {CALLERS} running texts while images keep arriving",
            f"{own / alone:.2f} times the p99 without",
            "≤ 2.5 times",
            f"{own * 1e3:.0f} and {alone * 1e3:.0f} ms; the longest {gaps[-1] * 1e3:.0f} ms; first tokens of images "
            f"after {median(firsts_s):.2f} s",
        )
    ]


def save_seeing(folder: Path, splits: bool = False) -> tuple[Path, Path]:
    """Write a model that sees, and its text model alone; return their folders. `splits`: it reads an image as a whole
    and in four tiles, each of them enlarged.
    """
    import torch
    import transformers
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(_TOKENS)})
    tokenizer.chat_template = _TEMPLATE
    text = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=None,
        eos_token_id=None,
    )
    tower = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": SIDE,
        "patch_size": 16,
    }
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    config = transformers.Idefics3Config(
        vision_config=tower, text_config=text.to_dict(), image_token_id=image_id, scale_factor=4
    )
    model: Any = transformers.Idefics3ForConditionalGeneration(config).eval()
    alone: Any = transformers.LlamaForCausalLM(text).eval()
    with torch.no_grad():
        # Only words are ever the most probable token: each token is a word, each piece is one token.
        model.lm_head.weight[:256] = 0
        model.lm_head.weight[len(tokenizer) - len(_TOKENS) - 1 :] = 0
        alone.model.load_state_dict(model.model.text_model.state_dict())
        alone.lm_head.load_state_dict(model.lm_head.state_dict())
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 2 * SIDE if splits else SIDE},
        max_image_size={"longest_edge": SIDE},
        do_image_splitting=splits,
    )
    processor = transformers.Idefics3Processor(images, tokenizer, image_seq_len=64, chat_template=_TEMPLATE)
    for module, path in ((model, folder / "seeing"), (alone, folder / "texts")):
        module.generation_config.eos_token_id = module.generation_config.bos_token_id = None
        module.save_pretrained(path)
    processor.save_pretrained(folder / "seeing")
    tokenizer.save_pretrained(folder / "texts")
    return folder / "seeing", folder / "texts"
