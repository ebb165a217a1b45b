"""Measure prompt lookup and a draft model beside the same server without them, on texts that quote their prompts and on
others.
"""

import asyncio
import itertools
import random
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import orjson

from tools.bench.peers.start import enter
from tools.bench.shared.language_models import LARGE, SMALL, VOCABULARY_SIZE, LlamaShape, save_llama
from tools.bench.shared.load import closed_loop, request_of
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import RunningServer
from tools.bench.shared.table import Row
from tools.bench.text_generation.generation import serving

_ROUNDS = 3
_NEW_TOKENS = 128
_QUOTES = (20, 40)
_DOCUMENT_TOKENS = 400
_FIRST_WORD = 512


def measure_speculation(folder: Path) -> list[Row]:
    """Measure both Llamas in fp32."""
    return [row for shape in (SMALL, LARGE) for row in _rows(folder, shape)]


def measure_draft_model(folder: Path) -> list[Row]:
    """Measure the larger Llama in fp32 with the smaller one as its draft model, which is nearly always right."""
    model = save_quoting_llama(folder / "draft-large", LARGE)
    draft = save_quoting_llama(folder / "draft-small", SMALL)
    own = folder / "draft"
    own.mkdir(exist_ok=True)
    with ExitStack() as stack:
        plain = enter(stack, serving(folder, model))
        drafting = enter(stack, serving(own, model, after=f'draft_model = "{draft}"\n'))
        measures = {
            name: partial(_rate, server, 1, "other", itertools.count(1))
            for name, server in (("plain", plain), ("draft", drafting))
        }
        rates = in_turn(measures, _ROUNDS)
    return [
        Row(
            f"{LARGE.label}, fp32, draft model of 6.5 M that is nearly always right, 1 caller, "
            f"{_NEW_TOKENS} new tokens",
            f"{median(rates['draft']):.0f} tokens/s, {ratio(rates['draft'], rates['plain']):.2f} times without",
            "≥ 1.8 times",
            f"without {median(rates['plain']):.0f} tokens/s",
        )
    ]


def save_quoting_llama(folder: Path, shape: LlamaShape) -> Path:
    """Write a Llama whose next token is most likely the one that follows the last one in a fixed order of all words.

    Its layers compute as any others do, but their sums are small beside the embedding.
    """
    import torch
    from safetensors.torch import load_file, save_file

    save_llama(folder, shape)
    weights = load_file(folder / "model.safetensors")
    unit = torch.nn.functional.normalize(weights["model.embed_tokens.weight"], dim=-1)
    weights["model.embed_tokens.weight"] = unit * shape.hidden_size**0.5
    following = torch.arange(VOCABULARY_SIZE) + 1
    following[-2:] = _FIRST_WORD
    weights["lm_head.weight"][following] = unit
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def document(choose: random.Random) -> list[int]:
    """Return a prompt of pieces of the fixed order of all words, as a document of sentences that an answer quotes.

    After each piece the answer goes on with another one. The prompt ends with the beginning of the first one.
    """
    sizes = list(itertools.accumulate(choose.choices(range(*_QUOTES), k=_DOCUMENT_TOKENS // _QUOTES[0])))
    sizes = [0, *(size for size in sizes if size < _DOCUMENT_TOKENS)]
    first = choose.randrange(_FIRST_WORD, VOCABULARY_SIZE - _DOCUMENT_TOKENS - _NEW_TOKENS)
    pieces = [list(range(first + start, first + end)) for start, end in itertools.pairwise(sizes)]
    beginning = pieces[0][:3]
    choose.shuffle(pieces)
    return [*itertools.chain.from_iterable(pieces), *beginning]


def _unlike_words(choose: random.Random) -> list[int]:
    """Return a prompt in which every pair of the answer's words occurs, with another word behind it."""
    words = range(_FIRST_WORD, VOCABULARY_SIZE - 1)
    first = choose.randrange(words.start, words.stop - _NEW_TOKENS)
    pairs = [(first + place, first + place + 1, choose.choice(words)) for place in range(_NEW_TOKENS)]
    choose.shuffle(pairs)
    return [*itertools.chain.from_iterable(pairs), first]


def _rows(folder: Path, shape: LlamaShape) -> list[Row]:
    model = save_quoting_llama(folder / f"{shape.name}-quoting", shape)
    with ExitStack() as stack:
        plain = enter(stack, serving(folder, model))
        looking = enter(stack, _looking(folder, model))
        measures = {
            f"{name} {callers} {task}": partial(_rate, server, callers, task, itertools.count(1))
            for task in ("quotes", "other")
            for callers in (1, 8)
            for name, server in (("plain", plain), ("lookup", looking))
        }
        rates = in_turn(measures, _ROUNDS)
    labels = {
        "quotes": "answers that quote their prompts",
        "other": "answers whose pairs of words the prompt continues otherwise",
    }
    return [
        Row(
            f"{shape.label}, fp32, prompt lookup, {callers} callers, {_NEW_TOKENS} new tokens: {labels[task]}",
            f"{median(ours):.0f} tokens/s, {ratio(ours, without):.2f} times without",
            "≥ 1.8 times" if (task, callers) == ("quotes", 1) else "≥ 0.97 times" if task == "other" else "-",
            f"without {median(without):.0f} tokens/s",
        )
        for task in labels
        for callers in (1, 8)
        for ours, without in [(rates[f"lookup {callers} {task}"], rates[f"plain {callers} {task}"])]
    ]


def _looking(folder: Path, model: Path) -> AbstractContextManager[RunningServer]:
    own = folder / "lookup"
    own.mkdir(exist_ok=True)
    return serving(own, model, after='speculation = "lookup"\n')


def _rate(server: RunningServer, callers: int, task: str, seeds: "itertools.count[int]") -> float:
    choose = random.Random(next(seeds))
    count = 4 * callers
    make = document if task == "quotes" else _unlike_words
    prompts = [make(choose) for _ in range(count + callers)]
    fields = {"model": "llama", "ignore_eos": True, "max_tokens": _NEW_TOKENS, "temperature": 0}
    requests = [request_of("/v1/completions", orjson.dumps({"prompt": each} | fields)) for each in prompts]
    with server.awake():
        seconds = asyncio.run(closed_loop(server.port, requests, callers, count, callers))
    return count * _NEW_TOKENS / seconds
