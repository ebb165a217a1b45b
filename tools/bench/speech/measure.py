"""Measure speech: our server, beside CTranslate2 and transformers in a process of their own."""

import itertools
import time
import wave
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import orjson

from tools.bench.shared.rounds import in_turn, num_rounds, ratio
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row
from tools.bench.speech.in_process import in_process
from tools.bench.speech.models import WHISPER_SMALL, WHISPER_TINY, Shape, save_model

_ROUNDS = 5
_CALLERS = (1, 8)
_SECONDS, _RATE = 20, 16_000
_SPEECH_TOKENS = 60
_PEERS = ("ctranslate2", "ctranslate2-int8", "transformers")
_TARGETS = {("ctranslate2", 1): "1.0", ("ctranslate2", 8): "1.3", ("ctranslate2-int8", 1): "0.9"}
_TIMEOUT_S = 600.0
_requests = itertools.count()
"""Numbers that make each source another one."""


def measure_speech(folder: Path) -> list[Row]:
    """Read sounds of 20 seconds, 60 tokens each, by 1 and by 8 callers; seconds of all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    sounds = [_sound(number) for number in range(max(_CALLERS))]
    files = [folder / f"{number}.wav" for number in range(len(sounds))]
    for file, samples in zip(files, sounds, strict=True):
        _write_wav(file, samples)
    rows: list[Row] = []
    for shape in (WHISPER_TINY, WHISPER_SMALL):
        model = save_model(folder / shape.name, shape)
        bodies = [_SpeechBody(file.read_bytes()) for file in files]
        inputs = [str(_features(model, folder / f"{i}.npy", samples)) for i, samples in enumerate(sounds)]
        rows += _compare(folder, shape, model, _SPEECH_TOKENS, [each.of for each in bodies], inputs)
    return rows


def _compare(
    folder: Path,
    shape: Shape,
    model: Path,
    num_tokens: int,
    bodies: Sequence[Callable[[str], tuple[bytes, str]]],
    inputs: Sequence[Any],
) -> list[Row]:
    """`bodies`: of each caller, from the name of a model to a body and its content type. `inputs`: of the peers."""
    config = folder / f"{shape.name}.toml"
    config.write_text(
        "".join(
            f'[[models.torch_models]]\nname = "{dtype}"\npath = "{model}"\ndtype = "{dtype}"\nmin_cosine = 0.5\n\n'
            for dtype in ("f32", "int8")
        ),
        encoding="utf-8",
    )
    rows: list[Row] = []
    with ExitStack() as stack:
        server = stack.enter_context(roundhouse(config=config))
        peers = {name: stack.enter_context(in_process(name, model, num_tokens)) for name in _PEERS}
        pool = stack.enter_context(ThreadPoolExecutor(max(_CALLERS)))
        for callers in _CALLERS:
            ways: dict[str, Callable[[], float]] = {
                dtype: partial(_ask, server, pool, [partial(each, dtype) for each in bodies[:callers]])
                for dtype in ("f32", "int8")
            }
            ways |= {name: partial(peer.run, list(inputs[:callers])) for name, peer in peers.items()}
            for way in ways.values():
                way()
            rows += _rows(shape, callers, in_turn(ways, num_rounds(_ROUNDS)))
    return rows


def _rows(shape: Shape, callers: int, figures: Mapping[str, Sequence[float]]) -> list[Row]:
    """Return ours, with the ratio to each peer of the same width."""
    rows = []
    for dtype, peer in (("f32", "ctranslate2"), ("int8", "ctranslate2-int8"), ("f32", "transformers")):
        rows.append(
            Row(
                f"{shape.name} {dtype}, {callers} callers, beside {peer} in process",
                f"{1000 * median(figures[dtype]):.0f} ms",
                _TARGETS.get((peer, callers), "-"),
                f"{ratio(figures[peer], figures[dtype]):.2f} times, {1000 * median(figures[peer]):.0f} ms",
            )
        )
    return rows


def _ask(server: RunningServer, pool: ThreadPoolExecutor, bodies: Sequence[Callable[[], tuple[bytes, str]]]) -> float:
    """Send all bodies at once, and return the seconds until the last response."""

    def send(body: tuple[bytes, str]) -> None:
        content, content_type = body
        url = f"http://127.0.0.1:{server.port}/infer"
        request = Request(url, content, {"content-type": content_type})
        with urlopen(request, timeout=_TIMEOUT_S) as response:
            response.read()

    contents = [body() for body in bodies]
    with server.awake():
        started_s = time.perf_counter()
        list(pool.map(send, contents))
        return time.perf_counter() - started_s


class _SpeechBody:
    """The request for the text of a sound."""

    def __init__(self, file: bytes) -> None:
        self._file = file

    def of(self, model: str) -> tuple[bytes, str]:
        """Return the body and its content type."""
        parameters = {"language": "en", "task": "transcribe", "max_new_tokens": _SPEECH_TOKENS}
        # The states of an equal source are cached, and no peer has such a cache: the last samples differ each time.
        audio = b64encode(self._file[:-4] + next(_requests).to_bytes(4, "little")).decode()
        return orjson.dumps({"model_name": model, "audio": audio, "parameters": parameters}), "application/json"


def _sound(seed: int) -> "np.ndarray[Any, Any]":
    """Return noise with gaps, int16 [samples]."""
    draw = np.random.default_rng(seed)
    count = _SECONDS * _RATE
    gates = np.repeat(draw.uniform(0, 1, count // 2000 + 1), 2000)[:count]
    return np.clip(draw.normal(0, 3000, count) * gates, -32_000, 32_000).astype(np.int16)


def _write_wav(file: Path, samples: "np.ndarray[Any, Any]") -> None:
    with wave.open(str(file), "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(_RATE)
        writer.writeframes(samples.tobytes())


def _features(model: Path, file: Path, samples: "np.ndarray[Any, Any]") -> Path:
    """Write the features of a sound, float32 [1, channels, frames]: the peers do not compute them."""
    import transformers

    extractor = transformers.WhisperFeatureExtractor.from_pretrained(model)
    np.save(file, extractor(samples / 32_768, sampling_rate=_RATE, return_tensors="np").input_features)
    return file
