"""Measure MiniLM behind the server beside the libraries that run it fastest on a CPU, in process."""

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import orjson

from tools.bench.peers.start import enter
from tools.bench.requests.in_process import InProcess, in_process
from tools.bench.requests.text_throughput import Way
from tools.bench.shared.corpus import DECK, mixed_texts
from tools.bench.shared.load import request_of
from tools.bench.shared.rounds import in_turn, num_rounds, ratio
from tools.bench.shared.servers import roundhouse
from tools.bench.shared.table import Row

_ROUNDS = 3
_CHECKED = 32
_LEAST_COSINE = 0.97
_MODEL = "minilm"
_OURS: Mapping[str, tuple[str, str]] = {
    "PyTorch": ("torch", _MODEL),
    "ONNX": ("onnx", "minilm-onnx"),
    "PyTorch, int8": ("torch", _MODEL),
}
"""Kind of the entry, and folder."""
_PEERS: Mapping[str, tuple[str, str]] = {
    "OpenVINO": ("openvino", "minilm-onnx"),
    "CTranslate2": ("ctranslate2", _MODEL),
    "CTranslate2 in int8": ("ctranslate2-int8", _MODEL),
}
"""Framework of `in_process`, and folder."""
_COMPARED: Mapping[str, Sequence[str]] = {
    "PyTorch": ("OpenVINO", "CTranslate2"),
    "ONNX": ("OpenVINO", "CTranslate2"),
    "PyTorch, int8": ("CTranslate2 in int8",),
}


def measure_text_peers(models: Path) -> list[Row]:
    """Return the rows of each of _OURS, with 32 connections and with one, all on one core."""
    texts = mixed_texts()
    deck = texts[:DECK]
    with ExitStack() as stack:
        processes = _processes(stack, models)
        reference = stack.enter_context(in_process("onnx", models / "minilm-onnx"))
        _, expected = reference.embed(texts[:_CHECKED])
        cosines = {name: _cosine(each.embed(texts[:_CHECKED])[1], expected) for name, each in processes.items()}
        ways: dict[str, Callable[[], float]] = {}
        singles: dict[str, Callable[[], float]] = {}
        for name, process in processes.items():
            ways[name] = partial(_batched, process, texts[: 2 * DECK])
            singles[name] = partial(_one_by_one, process, deck)
        for name in _OURS:
            way, cosines[name] = _served(stack, models, name, texts, expected)
            ways[name] = partial(way.steady, decks=2)
            singles[name] = partial(way.single, decks=1)
        rates = in_turn(ways, num_rounds(_ROUNDS))
        single_rates = in_turn(singles, num_rounds(_ROUNDS))
    rows = []
    for name, compared in _COMPARED.items():
        about = f"MiniLM ({name}), texts of 4 to 130 words, one a request, beside libraries in process"
        target = "≥ 1.05 times" if name.startswith("PyTorch") else "-"
        rows.append(_row(f"{about}: 32 connections", rates, name, compared, target, cosines))
        rows.append(_row("the same: one connection, one text at a time", single_rates, name, compared, "≥ 1.0 times"))
    return rows


def _processes(stack: ExitStack, models: Path) -> dict[str, InProcess]:
    """Start the peers that can be installed here."""
    found = {}
    for name, (framework, folder) in _PEERS.items():
        try:
            found[name] = stack.enter_context(in_process(framework, models / folder))
        except RuntimeError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return found


def _served(
    stack: ExitStack, models: Path, name: str, texts: Sequence[str], expected: Sequence[Sequence[float]]
) -> tuple[Way, str]:
    """Start a server, paused; return it with the cosines of its first rows."""
    kind, folder = _OURS[name]
    path = orjson.dumps(str(models / folder)).decode()
    entry = f'[[models.{kind}_models]]\nname = "{_MODEL}"\npath = {path}\n'
    if "int8" in name:
        entry += 'dtype = "int8"\n'
    config = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "config.toml"
    config.write_text(f"[performance]\nintra_op_threads = 1\n\n{entry}", encoding="utf-8")
    server = enter(stack, roundhouse(config=config))
    with server.awake():
        answer = server.post(f"/models/{_MODEL}/infer", orjson.dumps({"text": texts[:_CHECKED]}))
    cosine = _cosine(answer["embeddings"], expected)
    requests = [request_of(f"/models/{_MODEL}/infer", orjson.dumps({"text": text})) for text in texts]
    return Way(server, requests), cosine


def _cosine(found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]]) -> str:
    """Return the mean and the least cosine. Raises RuntimeError where a text is embedded differently."""
    cosines = np.sum(np.asarray(found) * np.asarray(expected), axis=1)
    if cosines.min() < _LEAST_COSINE:
        raise RuntimeError(f"a text has another embedding: cosine {cosines.min():.4f}")
    return f"cosine {cosines.mean():.4f}, least {cosines.min():.4f}"


def _batched(process: InProcess, texts: Sequence[str]) -> float:
    return len(texts) / process.embed(texts)[0]


def _one_by_one(process: InProcess, texts: Sequence[str]) -> float:
    return len(texts) / sum(process.embed([text])[0] for text in texts)


def _row(
    what: str,
    rates: Mapping[str, list[float]],
    name: str,
    compared: Sequence[str],
    target: str,
    cosines: Mapping[str, str] | None = None,
) -> Row:
    def described(each: str) -> str:
        rate = f"{median(rates[each]):.1f} texts/s"
        return f"{rate} ({cosines[each]})" if cosines and "int8" in each else rate

    beside = [
        f"{each} {described(each)}: {ratio(rates[name], rates[each]):.2f} times" if each in rates else f"{each} -"
        for each in compared
    ]
    return Row(what, described(name), target, "; ".join(beside))
