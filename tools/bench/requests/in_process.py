"""Run the texts with the library alone: the upper limit for a server.

`python -m tools.bench.requests.in_process FRAMEWORK FOLDER SESSIONS THREADS` reads a list of texts from every line of
its standard input. It writes one line for each: the seconds that all of them took, and the embeddings of the first
ones. FRAMEWORK: as of `encoders.load_encoder`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench.peers.install import python_of
from tools.bench.shared.cores import SERVER_CORES, on_cores
from tools.bench.shared.encoders import Encoder, load_encoder
from tools.bench.shared.servers import ROOT

_BATCH_SIZE = 8
_MAX_ANSWERED = 32
_PEERS = {"openvino": "openvino", "ctranslate2": "ctranslate2", "ctranslate2-int8": "ctranslate2"}
"""The environment of a framework, where it is not that of the project."""


@dataclass(slots=True)
class InProcess:
    """A process with the library and the model that reads texts."""

    process: subprocess.Popen[str]

    def embed(self, texts: Sequence[str]) -> tuple[float, list[list[float]]]:
        """Return the seconds of all texts, and the embeddings of the first ones."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(texts) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["seconds"], answer["embeddings"]


@contextmanager
def in_process(
    framework: str, folder: Path, sessions: int = 1, threads: int = 1, cores: frozenset[int] = SERVER_CORES
) -> Iterator[InProcess]:
    """Run this number of sessions in parallel, each with `threads` threads.

    Raises RuntimeError where a peer cannot be installed.
    """
    peer = _PEERS.get(framework)
    python = sys.executable if peer is None else str(python_of(peer))
    command = [python, "-m", "tools.bench.requests.in_process"]
    command += [framework, str(folder), str(sessions), str(threads)]
    with (
        on_cores(cores),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process,
    ):
        try:
            yield InProcess(process)
        finally:
            process.kill()


def _embed_all(encoders: Sequence[Encoder], texts: list[str]) -> np.ndarray[Any, Any]:
    """Run batches of 8 by falling length; each idle encoder takes the next batch."""
    tokens = encoders[0].tokenize(texts)
    order = sorted(range(len(texts)), key=lambda position: len(tokens[position]), reverse=True)
    batches = [order[start : start + _BATCH_SIZE] for start in range(0, len(order), _BATCH_SIZE)]
    coming = iter(batches)
    rows: dict[int, np.ndarray[Any, Any]] = {}

    def work(encoder: Encoder) -> None:
        for batch in coming:  # a list's iterator gives each batch once, also to several threads
            rows.update(zip(batch, encoder.embed([tokens[position] for position in batch]), strict=True))

    if len(encoders) == 1:
        work(encoders[0])
    else:
        with ThreadPoolExecutor(len(encoders)) as pool:
            list(pool.map(work, encoders))
    return np.stack([rows[position] for position in range(len(texts))])


def main(framework: str, folder: str, sessions: str, threads: str) -> None:
    """Read texts until the standard input ends."""
    encoders = [load_encoder(framework, folder, int(threads)) for _ in range(int(sessions))]
    for line in sys.stdin:
        texts: list[str] = json.loads(line)
        started_s = time.perf_counter()
        rows = _embed_all(encoders, texts)
        seconds = time.perf_counter() - started_s
        print(json.dumps({"seconds": seconds, "embeddings": rows[:_MAX_ANSWERED].tolist()}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
