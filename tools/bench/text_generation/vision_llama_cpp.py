"""Measure a language model that sees beside llama.cpp's server, on one core, with the same GGUF files: the language
model and its mmproj file, in float32 and in 8 bits. BENCH_ROUNDS is as for the comparison of texts.
"""

import itertools
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from gguf import GGMLQuantizationType as Kind

from tests.support.gguf_files import write_gguf, write_mmproj
from tools.bench.peers.llama_cpp import llama_server, quantized
from tools.bench.peers.start import enter, enter_peer
from tools.bench.shared.rounds import in_turn, num_rounds, ratio
from tools.bench.shared.servers import roundhouse
from tools.bench.shared.table import Row
from tools.bench.text_generation.generation import llama_config
from tools.bench.text_generation.vision import CALLERS, LABEL, NEW_TOKENS, SIDE, Asked, image_files, save_seeing

_ROUNDS = 3
_REQUESTS = 8
_TILES = 5
_TARGETS = {"F32": "≥ 1.0 times", "Q8_0": "≥ 1.2 times"}


def measure_vision_llama_cpp(folder: Path) -> list[Row]:
    """Return a row for each precision: callers with an image each."""
    # llama.cpp reads every image as a whole and in tiles.
    model, _ = save_seeing(folder / "vision", splits=True)
    return [_row(folder, _files(folder / kind.lower(), model, kind), kind) for kind in _TARGETS]


def _files(folder: Path, model: Path, kind: str) -> Path:
    """Write both GGUF files of a model into a folder."""
    folder.mkdir()
    file = write_gguf(model, folder.with_suffix(".gguf"), Kind.F32)
    shutil.move(file if kind == "F32" else quantized(file, kind), folder / "model.gguf")
    write_mmproj(model, folder / "mmproj-model.gguf", Kind[kind])
    return folder


def _row(folder: Path, files: Path, kind: str) -> Row:
    seeds, pictures = itertools.count(1), image_files()
    with ExitStack() as stack:
        ours = Asked(enter(stack, roundhouse(config=llama_config(folder, files, "f32"))), "llama", {"ignore_eos": True})
        ways = {"ours": ours}
        server = llama_server(files / "model.gguf", "F32", files / "mmproj-model.gguf")
        peer = enter_peer(stack, "llama.cpp", server)
        if peer is not None:
            ways["llama.cpp"] = Asked(peer, "llama", {"ignore_eos": True, "cache_prompt": False})
        picture = next(pictures)
        texts = {name: way.text("what is it", picture) for name, way in ways.items()}
        # Both enlarge an image, which changes its pixels a little.
        if kind == "F32" and len({text.split()[0] for text in texts.values()}) > 1:
            raise RuntimeError(f"the texts of an image begin differently: {texts}")

        def measured(way: Asked) -> Callable[[], float]:
            return lambda: way.rate(_REQUESTS, next(seeds), pictures)

        rates = in_turn({name: measured(way) for name, way in ways.items()}, num_rounds(_ROUNDS))
    found, compared = f"{median(rates['ours']):.1f} tokens/s", "no peer runs here"
    if peer is not None:
        found += f", {ratio(rates['ours'], rates['llama.cpp']):.2f} times llama.cpp"
        compared = f"llama.cpp {median(rates['llama.cpp']):.1f} tokens/s"
    image = f"an image of {SIDE} x {SIDE} in {_TILES} tiles"
    what = f"{LABEL} in {kind}, one core: {CALLERS} callers, {image} each, {NEW_TOKENS} new tokens"
    return Row(what, found, _TARGETS[kind], compared)
