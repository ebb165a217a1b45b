"""Run a model of Whisper in a process without a server.

`python -m tools.bench.speech.in_process FRAMEWORK FOLDER TOKENS` reads a list of inputs from every line of its standard
input, paths of features (.npy). It writes an empty line when the model is loaded, then the
seconds that all inputs of a line took as one batch. FRAMEWORK: transformers, ctranslate2 or ctranslate2-int8. TOKENS:
of each text.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench.peers.install import python_of
from tools.bench.shared.cores import SERVER_CORES, on_cores
from tools.bench.shared.servers import ROOT
from tools.bench.speech.models import WHISPER_PROMPT, WHISPER_SUPPRESSED

Run = Callable[[list[Any]], None]
_BEGIN_SUPPRESSED = (220, 50_257)


@dataclass(slots=True)
class InProcess:
    """A process with the library and the model."""

    process: subprocess.Popen[str]

    def run(self, inputs: Sequence[Any]) -> float:
        """Return the seconds of all inputs together."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(inputs) + "\n")
        self.process.stdin.flush()
        seconds: float = json.loads(self.process.stdout.readline())
        return seconds


@contextmanager
def in_process(framework: str, folder: Path, num_tokens: int) -> Iterator[InProcess]:
    """Start the process on the core of the servers. Raises RuntimeError where a peer cannot be installed."""
    python = sys.executable if framework == "transformers" else str(python_of("ctranslate2"))
    command = [python, "-m", "tools.bench.speech.in_process", framework, str(folder), str(num_tokens)]
    with (
        on_cores(SERVER_CORES),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process,
    ):
        try:
            assert process.stdout is not None
            # One process converts a model, and the next one finds it.
            process.stdout.readline()
            yield InProcess(process)
        finally:
            process.kill()


def _load(framework: str, folder: Path, num_tokens: int) -> Run:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if framework == "transformers":
        return _transformers(folder, config, num_tokens)
    compute_type = "int8" if framework.endswith("int8") else "float32"
    return _ctranslate2(folder, config, num_tokens, compute_type)


def _transformers(folder: Path, config: dict[str, Any], num_tokens: int) -> Run:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    model: Any = getattr(transformers, config["architectures"][0]).from_pretrained(folder).eval()

    def run(inputs: list[Any]) -> None:
        options = {"language": "en", "task": "transcribe", "num_beams": 1, "do_sample": False}
        with torch.inference_mode():
            model.generate(torch.from_numpy(_features(inputs)), max_new_tokens=num_tokens, **options)

    return run


def _ctranslate2(folder: Path, config: dict[str, Any], num_tokens: int, compute_type: str) -> Run:
    import ctranslate2

    converted = _converted(folder, config)
    model = ctranslate2.models.Whisper(str(converted), compute_type=compute_type, intra_threads=1, inter_threads=1)

    def run(inputs: list[Any]) -> None:
        features = ctranslate2.StorageView.from_array(_features(inputs))
        # The library allows half of this length to the text.
        model.generate(
            features,
            [list(WHISPER_PROMPT)] * len(inputs),
            beam_size=1,
            max_length=2 * num_tokens,
            suppress_tokens=list(WHISPER_SUPPRESSED),
        )

    return run


def _features(paths: list[str]) -> "np.ndarray[Any, Any]":
    """Return the features of all sounds, float32 [sounds, channels, frames]."""
    return np.concatenate([np.load(path) for path in paths]).astype(np.float32)


def _converted(folder: Path, config: dict[str, Any]) -> Path:
    """Convert a folder by the library's own loader of its class; the vocabulary has stand-ins for words."""
    from ctranslate2.converters import transformers as converters

    target = folder.with_name(f"{folder.name}-ctranslate2")
    if target.exists():
        return target
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    model: Any = getattr(transformers, config["architectures"][0]).from_pretrained(folder).eval()
    loader = converters._MODEL_LOADERS[type(model.config).__name__]
    with torch.no_grad():
        spec = loader.get_model_spec(model)
    size = config["vocab_size"]
    names = [f"t{i}" for i in range(size)]
    known = {50_257: "<|endoftext|>", 50_258: "<|startoftranscript|>", 50_259: "<|en|>", 50_358: "<|translate|>"}
    known |= {50_359: "<|transcribe|>", 50_360: "<|startoflm|>", 50_361: "<|startofprev|>"}
    known |= {50_362: "<|nospeech|>", 50_363: "<|notimestamps|>"}
    known |= {i: f"<|{(i - 50_364) * 0.02:.2f}|>" for i in range(50_364, size)}
    spec.register_vocabulary([known.get(i, name) for i, name in enumerate(names)])
    spec.config.suppress_ids = list(WHISPER_SUPPRESSED)
    spec.config.suppress_ids_begin = list(_BEGIN_SUPPRESSED)
    spec.config.lang_ids = [WHISPER_PROMPT[1]]
    spec.config.alignment_heads = [[1, 0]]
    target.mkdir()
    spec.validate()
    spec.optimize()
    spec.save(str(target))
    return target


def main(framework: str, folder: str, num_tokens: str) -> None:
    """Read inputs until the standard input ends."""
    run = _load(framework, Path(folder), int(num_tokens))
    print(flush=True)
    for line in sys.stdin:
        inputs = json.loads(line)
        started_s = time.perf_counter()
        run(inputs)
        print(json.dumps(time.perf_counter() - started_s), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
