"""Measure decode steps of transformers' `generate` with a static cache, which it compiles on CUDA."""

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from tools.bench.shared.language_models import VOCABULARY_SIZE
from tools.bench.shared.table import Row

_PROMPT_TOKENS = 64
_FEW_TOKENS = 2
_ROUNDS = 3


def static_cache_rows(folder: Path, label: str, device: str, dtype: torch.dtype, steps: int) -> Iterator[Row]:
    """Yield a row for one text. `steps`: of a round. Where the model cannot be compiled, the row has the reason."""
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    model.to(device).eval()
    what = f"{label}, {dtype}: decode step of one text, transformers' generate with a static cache"
    try:
        seconds = min(_generate_s(model, device, _FEW_TOKENS + steps) for _ in range(_ROUNDS))
        first_s = min(_generate_s(model, device, _FEW_TOKENS) for _ in range(_ROUNDS))
        yield Row(what, f"{(seconds - first_s) / steps * 1e3:.2f} ms")
    except Exception as error:  # noqa: BLE001 - a compiler that is missing raises errors of many kinds
        reason, _, _ = str(error).partition("\n")
        yield Row(what, "-", compared=f"{type(error).__name__}: {reason}")
    finally:
        del model
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def _generate_s(model: Any, device: str, new_tokens: int) -> float:
    prompt = torch.randint(300, VOCABULARY_SIZE - 1, (1, _PROMPT_TOKENS), device=device)
    began_s = time.perf_counter()
    model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        min_new_tokens=new_tokens,
        max_new_tokens=new_tokens,
        do_sample=False,
        pad_token_id=0,
        cache_implementation="static",
    )
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began_s
