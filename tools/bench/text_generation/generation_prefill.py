"""Measure the prefill of one long prompt, as the share of the core's fastest products.

BENCH_ROUNDS and BENCH_ISA are as for the comparison with llama.cpp.
"""

import random
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import orjson

from tools.bench.peers.start import enter
from tools.bench.shared.instruction_sets import is_masked, mask, multiplies_bf16
from tools.bench.shared.language_models import LARGE, VOCABULARY_SIZE, LlamaShape, prompt, save_llama
from tools.bench.shared.rounds import in_turn, num_rounds
from tools.bench.shared.servers import RunningServer, roundhouse
from tools.bench.shared.table import Row
from tools.bench.text_generation.generation import llama_config
from tools.bench.text_generation.product_peak import product_peak

_TOKENS = 1000
_ROUNDS = 5
_TARGET = "≥ 70 %"


def measure_generation_prefill(folder: Path) -> list[Row]:
    """Return a row for float32, and one for bfloat16 where the CPU multiplies it."""
    model = folder / LARGE.name
    if not model.exists():
        save_llama(model, LARGE)
    return [_row(folder, model, dtype) for dtype in ("f32", *(["bf16"] if multiplies_bf16() else []))]


def prefill_operations(shape: LlamaShape, tokens: int) -> float:
    """Return the operations of the products and of the attention of a prompt whose last token alone has logits."""
    head_size = shape.hidden_size // shape.num_heads
    joined = shape.hidden_size + 2 * shape.num_key_value_heads * head_size
    after_attention = shape.hidden_size * (shape.hidden_size + 3 * shape.intermediate_size)
    # Behind the attention of the last layer, one token is left.
    weights = shape.num_layers * shape.hidden_size * joined + (shape.num_layers - 1) * after_attention
    of_products = 2 * tokens * weights + 2 * (after_attention + VOCABULARY_SIZE * shape.hidden_size)
    # Each token sees those before it, and itself: a product with their keys, and one with their values.
    of_attention = 4 * shape.num_layers * shape.hidden_size * tokens * (tokens + 1) / 2
    return of_products + of_attention


def _row(folder: Path, model: Path, dtype: str) -> Row:
    operations = prefill_operations(LARGE, _TOKENS)
    sizes = (LARGE.intermediate_size, LARGE.hidden_size, _TOKENS)
    choose = random.Random(0)
    with ExitStack() as stack:
        server = enter(stack, roundhouse(config=llama_config(folder, model, dtype), environment=mask()))
        measures = {"prefill": lambda: _prefill_s(server, choose), "peak": lambda: product_peak(dtype, *sizes)}
        in_turn(measures, 1)  # kernels, and the price of a step
        figures = in_turn(measures, num_rounds(_ROUNDS))
    shares = [operations / took_s / peak for took_s, peak in zip(figures["prefill"], figures["peak"], strict=True)]
    what = f"{LARGE.label}, {dtype}, one core{' masked to AVX2' if is_masked() else ''}"
    return Row(
        f"{what}: a prompt of {_TOKENS:,} tokens alone, share of the fastest products of its shapes",
        f"{median(shares):.0%}, {median(figures['prefill']):.2f} s".replace("%", " %", 1),
        _TARGET,
        f"{operations / 1e9:.0f} GFLOP; oneDNN's packed product {median(figures['peak']) / 1e9:.0f} GFLOP/s",
    )


def _prefill_s(server: RunningServer, choose: random.Random) -> float:
    """Return the seconds of a request for one token, HTTP and the tokens of the prompt included."""
    fields = {"model": "llama", "prompt": prompt(_TOKENS, choose), "max_tokens": 1, "temperature": 0}
    body = orjson.dumps(fields)
    server.connection.close()  # the server may have closed it while it was paused
    with server.awake():
        started_s = time.perf_counter()
        answer = server.post("/v1/completions", body)
        took_s = time.perf_counter() - started_s
    if answer["usage"]["prompt_tokens"] != _TOKENS:
        raise RuntimeError(f"{answer['usage']} instead of {_TOKENS} tokens")
    return took_s
