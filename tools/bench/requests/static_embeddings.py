"""Measure StaticEmbedding on one core: lists of texts in requests, beside sentence-transformers in process.

The weights are random: the time of the work does not depend on them.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from tools.bench.peers.start import enter
from tools.bench.shared.cores import LOAD_CORES, SERVER_CORES, on_cores
from tools.bench.shared.corpus import mixed_texts, short_texts
from tools.bench.shared.load import closed_loop, request_of
from tools.bench.shared.rounds import in_turn, num_rounds, ratio
from tools.bench.shared.servers import ROOT, RunningServer, roundhouse
from tools.bench.shared.table import Row

_CALLERS = 16
_ROUNDS = 5
_SIZE = 256
_TEXTS_PER_REQUEST = 64
_NUM_TEXTS = 16_384
_CORPORA: dict[str, Callable[[], list[str]]] = {
    "2 to 6 words": lambda: short_texts(_NUM_TEXTS),
    "4 to 130 words": lambda: mixed_texts() * (_NUM_TEXTS // 2048),
}


def measure_static_embeddings(folder: Path, minilm: Path) -> list[Row]:
    """Return the rows of texts per second: as JSON numbers, and as base64."""
    model = folder / "static"
    _write_model(model, minilm)
    config = folder / "static.toml"
    config.write_text(
        "[performance]\nintra_op_threads = 1\n"
        f'[[models.torch_models]]\nname = "static"\npath = "{model}"\nmax_batch_size = 1024\n',
        encoding="utf-8",
    )
    with ExitStack() as stack:
        server = enter(stack, roundhouse(config=config))
        return [row for name, texts in _CORPORA.items() for row in _rows(server, model, name, texts())]


def _rows(server: RunningServer, model: Path, name: str, texts: list[str]) -> list[Row]:
    lists = [texts[at : at + _TEXTS_PER_REQUEST] for at in range(0, len(texts), _TEXTS_PER_REQUEST)]
    numbers = [request_of("/models/static/infer", json.dumps({"text": each}).encode()) for each in lists]
    body = {"model": "static", "encoding_format": "base64"}
    base64 = [request_of("/v1/embeddings", json.dumps({**body, "input": each}).encode()) for each in lists]
    ways: dict[str, Callable[[], float]] = {
        "numbers": partial(_rate, server, numbers, len(texts)),
        "base64": partial(_rate, server, base64, len(texts)),
        "alone": partial(_alone, model, texts),
    }
    rates = in_turn(ways, num_rounds(_ROUNDS))
    what = f"StaticEmbedding of {_SIZE} numbers, texts of {name}, {_TEXTS_PER_REQUEST} a request, one core"
    beside = f"SentenceTransformer in process {median(rates['alone']):,.0f} /s"
    return [
        Row(
            f"{what}: {route}",
            f"{median(rates[way]):,.0f} /s",
            "≥ 20,000 /s",
            f"{beside}: {ratio(rates[way], rates['alone']):.2f} times",
        )
        for way, route in (("numbers", "`/infer`"), ("base64", "`/v1/embeddings`, base64"))
    ]


def _rate(server: RunningServer, requests: Sequence[bytes], count: int) -> float:
    with server.awake(), on_cores(LOAD_CORES):
        return count / asyncio.run(closed_loop(server.port, requests, _CALLERS, len(requests), _CALLERS))


def _alone(model: Path, texts: Sequence[str]) -> float:
    """Return the texts per second of the library in a process of its own."""
    command = [sys.executable, "-m", "tools.bench.requests.static_embeddings", str(model)]
    with on_cores(SERVER_CORES):
        done = subprocess.run(
            command, cwd=ROOT, input=json.dumps(texts), capture_output=True, text=True, timeout=600, check=True
        )
    return float(done.stdout.split()[-1])


def _write_model(folder: Path, minilm: Path) -> None:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    torch.manual_seed(0)
    module = StaticEmbedding(Tokenizer.from_file(str(minilm / "tokenizer.json")), embedding_dim=_SIZE)
    SentenceTransformer(modules=[module], device="cpu").save(str(folder))


def _run_alone(folder: str) -> None:
    """Print the texts per second of all texts of the standard input, on one thread."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    model = SentenceTransformer(folder, device="cpu")
    texts = json.load(sys.stdin)
    model.encode(texts[:1024], batch_size=1024, show_progress_bar=False)
    started_s = time.perf_counter()
    model.encode(texts, batch_size=1024, show_progress_bar=False)
    print(len(texts) / (time.perf_counter() - started_s))


if __name__ == "__main__":
    _run_alone(*sys.argv[1:])
