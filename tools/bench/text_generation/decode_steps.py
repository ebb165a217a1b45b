"""Run decode steps of a transformers model without a server, with the keys and values in its own cache.

`python -m tools.bench.text_generation.decode_steps FOLDER THREADS` reads a list of prompts and a number of steps from
every line of its standard input, and writes one line for each: the seconds of these steps. The prompts are read before
the clock starts.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench.shared.cores import ALL_CORES
from tools.bench.shared.servers import ROOT


@dataclass(slots=True)
class DecodeSteps:
    """A process with the model that reads prompts."""

    process: subprocess.Popen[str]

    def tokens_per_s(self, prompts: Sequence[str], num_steps: int) -> float:
        """Return the tokens per second of all prompts in one batch."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([prompts, num_steps]) + "\n")
        self.process.stdin.flush()
        return len(prompts) * num_steps / float(self.process.stdout.readline())


@contextmanager
def decode_steps(folder: Path) -> Iterator[DecodeSteps]:
    """Start the process on all cores, in fp32."""
    command = [sys.executable, "-m", "tools.bench.text_generation.decode_steps", str(folder), str(len(ALL_CORES))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield DecodeSteps(process)
        finally:
            process.kill()


def main(folder: str, threads: str) -> None:
    """Read prompts until the standard input ends."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, padding_side="left")
    for line in sys.stdin:
        prompts, num_steps = json.loads(line)
        with torch.inference_mode():
            print(_seconds(model, tokenizer(prompts, return_tensors="pt", padding=True), num_steps), flush=True)


def _seconds(model: Any, inputs: Any, num_steps: int) -> float:
    """Return the seconds of the steps after the prefill."""
    import torch
    from transformers import DynamicCache

    cache, ids, mask = DynamicCache(config=model.config), inputs["input_ids"], inputs["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    started_s = 0.0
    for step in range(1 + num_steps):
        if step == 1:
            started_s = time.perf_counter()
        answer = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1
        )
        ids = answer.logits[:, -1].argmax(-1, keepdim=True)
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        positions = positions[:, -1:] + 1
    return time.perf_counter() - started_s


if __name__ == "__main__":
    main(*sys.argv[1:])
