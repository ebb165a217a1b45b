"""Measure quantized MiniLMs beside the original: texts per second and cosines of the answers."""

import ast
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import orjson

from tools.bench.requests.text_throughput import Way
from tools.bench.shared.corpus import mixed_texts
from tools.bench.shared.load import request_of
from tools.bench.shared.rounds import in_turn, ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row

_ROUNDS = 5
_TEXTS = 2000
_TEXTS_PER_REQUEST = 100
_LONGEST_CHARACTERS = 1500


@dataclass(frozen=True, slots=True)
class _Variant:
    """A line of the entry, and its target."""

    name: str
    line: str
    target: str = "-"


_VARIANTS = {
    "onnx": (
        _Variant("`quantized = true`", "quantized = true", "≥ 2.0 times fp32, cosine ≥ 0.99 mean, ≥ 0.97 at worst"),
        _Variant('`quantized = "mixed"`', 'quantized = "mixed"', "≥ 1.6 times fp32, cosine ≥ 0.98 at worst"),
    ),
    "torch": (
        _Variant('`dtype = "int8"`', 'dtype = "int8"'),
        _Variant('`dtype = "bf16"`', 'dtype = "bf16"'),
    ),
}
_LABELS = {"onnx": "ONNX", "torch": "PyTorch"}
_FOLDERS = {"onnx": "minilm-onnx", "torch": "minilm"}


def measure_quantization(models: Path) -> list[Row]:
    """Return the rows of both frameworks."""
    return [row for framework in _VARIANTS for row in _rows(framework, models / _FOLDERS[framework])]


def written_texts() -> list[str]:
    """Return 2,000 docstrings of Python's packages, the same for one version of Python."""
    texts: dict[str, None] = {}
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*/*.py")):
        if file.parent.name in ("site-packages", "test", "lib2to3", "idlelib"):
            continue
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node)
                if text and len(text) <= _LONGEST_CHARACTERS:
                    texts[text] = None
    chosen = list(texts)
    return chosen[:: max(1, len(chosen) // _TEXTS)][:_TEXTS]


def _rows(framework: str, folder: Path) -> list[Row]:
    with ExitStack() as stack:
        beside = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        variants = (_Variant("f32", 'dtype = "f32"' if framework == "torch" else ""), *_VARIANTS[framework])
        path = f"/models/{folder.name}/infer"
        timed = [request_of(path, orjson.dumps({"text": text})) for text in mixed_texts()]
        ways: dict[str, Callable[[], float]] = {}
        embeddings: dict[str, Any] = {}
        texts = written_texts()
        for variant in variants:
            config = beside / f"{len(ways)}.toml"
            config.write_text(_config(framework, folder, variant.line, beside), encoding="utf-8")
            server = stack.enter_context(roundhouse(config=config))
            with server.awake():
                embeddings[variant.name] = _embed(server, path, texts)
            ways[variant.name] = partial(Way(server, timed).steady, decks=1)
        rates = in_turn(ways, _ROUNDS)
    return [_row(framework, variant, rates, embeddings) for variant in variants[1:]]


def _config(framework: str, folder: Path, line: str, cache_dir: Path) -> str:
    shown = (orjson.dumps(str(path)).decode() for path in (cache_dir, folder))
    return f"""
[models]
cache_dir = {next(shown)}

[[models.{framework}_models]]
name = "{folder.name}"
path = {next(shown)}
{line}

[performance]
intra_op_threads = 1
"""


def _embed(server: RunningServer, path: str, texts: Sequence[str]) -> np.ndarray[Any, Any]:
    parts = [texts[start : start + _TEXTS_PER_REQUEST] for start in range(0, len(texts), _TEXTS_PER_REQUEST)]
    answers = [server.post(path, orjson.dumps({"text": part}))["embeddings"] for part in parts]
    return np.concatenate([np.array(answer) for answer in answers])


def _row(framework: str, variant: _Variant, rates: Mapping[str, list[float]], embeddings: Mapping[str, Any]) -> Row:
    cosines = (embeddings["f32"] * embeddings[variant.name]).sum(axis=1)
    times = ratio(rates[variant.name], rates["f32"])
    return Row(
        f"MiniLM ({_LABELS[framework]}), {variant.name}: 32 connections",
        f"{median(rates[variant.name]):.1f} texts/s, {times:.2f} times fp32; over {len(cosines):,} texts cosine "
        f"{cosines.mean():.4f} mean, {cosines.min():.4f} at worst",
        variant.target,
        f"fp32 {median(rates['f32']):.1f} texts/s",
    )
