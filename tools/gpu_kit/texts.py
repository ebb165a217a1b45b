"""Measure texts per second of MiniLM and BERT-base beside the library alone, and compare the embeddings."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson

from tools.bench.shared.corpus import mixed_texts, short_texts
from tools.bench.shared.encoders import TorchEncoder
from tools.bench.shared.load import closed_loop, request_of
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row
from tools.gpu_kit.minilm import BERT_BASE, write_minilm

_BATCH = 64
_LEAST_COSINE = 0.999
_PATH = "/models/encoder/infer"


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work on a kind of device."""

    mixed: int
    short: int
    rounds: int


SCALES = {"cuda": Scale(512, 10_000, 3), "cpu": Scale(32, 100, 1)}


def measure_texts(files: Path, work: Path, device: str) -> Iterator[Row]:
    """Yield rows for one caller, 32 callers and one long list. Raises RuntimeError if embeddings differ."""
    for label, others in (("MiniLM", {}), ("BERT-base", BERT_BASE)):
        model = write_minilm(files, work / label, **others)
        yield from _rows(label, model, work, device)


def _rows(label: str, model: Path, work: Path, device: str) -> Iterator[Row]:
    scale = SCALES[device]
    config = work / "encoder.toml"
    entry = f'[[models.torch_models]]\nname = "encoder"\npath = "{model}"\ndevice = "{device}"\n'
    config.write_text(entry, encoding="utf-8")
    dtype = "float16" if device == "cuda" else "float32"
    alone = TorchEncoder(str(model), threads=0, device=device, dtype=dtype)
    mixed, short = mixed_texts()[: scale.mixed], short_texts(scale.short)
    with roundhouse(config=config, cores=None) as server:
        cosine = _least_cosine(server, alone, mixed[:64])
        if cosine < _LEAST_COSINE:
            raise RuntimeError(f"expected embeddings with a cosine of at least {_LEAST_COSINE}, got {cosine:.5f}")
        yield Row(
            f"{label}: least cosine between served and in-process embeddings", f"{cosine:.6f}", f"≥ {_LEAST_COSINE}"
        )
        singles = [request_of(_PATH, orjson.dumps({"text": text})) for text in mixed]
        many = orjson.dumps({"text": short})
        ways: dict[str, tuple[Callable[[], float], Sequence[str]]] = {
            "one text a request, 1 caller": (partial(_closed_s, server, singles, 1), mixed),
            "one text a request, 32 callers": (partial(_closed_s, server, singles, 32), mixed),
            f"{len(short):,} texts in one request": (partial(_post_s, server, many), short),
        }
        for what, (served_s, texts) in ways.items():
            served_s()
            both: dict[str, Callable[[], float]] = {"ours": served_s, "alone": partial(_alone_s, alone, texts)}
            seconds = in_turn(both, scale.rounds)
            rates = {name: [len(texts) / each for each in of_way] for name, of_way in seconds.items()}
            yield Row(
                f"{label} ({dtype}), {what}",
                f"{median(rates['ours']):.0f} texts/s, {ratio(rates['ours'], rates['alone']):.2f} times",
                compared=f"in-process, sorted, batches of {_BATCH}: {median(rates['alone']):.0f} texts/s",
            )


def _closed_s(server: RunningServer, requests: Sequence[bytes], callers: int) -> float:
    return asyncio.run(closed_loop(server.port, requests, callers, len(requests)))


def _post_s(server: RunningServer, body: bytes) -> float:
    server.connection.close()  # the server has closed it if the previous round was long
    started_s = time.perf_counter()
    server.post(_PATH, body)
    return time.perf_counter() - started_s


def _alone_s(encoder: TorchEncoder, texts: Sequence[str]) -> float:
    started_s = time.perf_counter()
    tokens = sorted(encoder.tokenize(list(texts)), key=len)
    for start in range(0, len(tokens), _BATCH):
        encoder.embed(tokens[start : start + _BATCH])
    return time.perf_counter() - started_s


def _least_cosine(server: RunningServer, encoder: TorchEncoder, texts: Sequence[str]) -> float:
    answer = server.post(_PATH, orjson.dumps({"text": texts}))
    served: np.ndarray[Any, Any] = np.asarray(answer["embeddings"], np.float32)
    alone = encoder.embed(encoder.tokenize(list(texts))).astype(np.float32)
    return float((served * alone).sum(axis=1).min())
