"""Run transformers' own continuous batching without a server.

`python -m tools.bench.text_generation.batching_in_process FOLDER DEVICE DTYPE` reads a list of prompts and a number of
new tokens from every line of its standard input, and writes one line for each: the seconds until the last text was
whole.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.bench.shared.servers import ROOT


@dataclass(slots=True)
class BatchingInProcess:
    """A process with the model that reads prompts."""

    process: subprocess.Popen[str]

    def tokens_per_s(self, prompts: Sequence[str], new_tokens: int) -> float:
        """Generate texts for all prompts at once."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([prompts, new_tokens]) + "\n")
        self.process.stdin.flush()
        return len(prompts) * new_tokens / float(self.process.stdout.readline())


@contextmanager
def batching_in_process(folder: Path, device: str, dtype: str) -> Iterator[BatchingInProcess]:
    """`dtype`: torch's name of it."""
    command = [sys.executable, "-m", "tools.bench.text_generation.batching_in_process", str(folder), device, dtype]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield BatchingInProcess(process)
        finally:
            process.kill()


def main(folder: str, device: str, dtype: str) -> None:
    """Read prompts until the standard input ends. The manager is created for the first prompts."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=getattr(torch, dtype))
    model = model.to(device).eval()
    for line in sys.stdin:
        prompts, new_tokens = json.loads(line)
        ids = tokenizer(prompts).input_ids
        config = GenerationConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1)
        started_s = time.perf_counter()
        answers = model.generate_batch(ids, generation_config=config, persistent_manager=True)
        seconds = time.perf_counter() - started_s
        if {len(answer.generated_tokens) for answer in answers.values()} != {new_tokens} or len(answers) != len(ids):
            raise RuntimeError("not all texts have all their tokens")
        print(seconds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
