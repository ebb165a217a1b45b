"""Choose the CPU's matmul of float32 and bfloat16 by measurements in this process, each made once and kept.

CPU flags alone do not decide. The instruction sets that oneDNN and torch use can be masked by the environment, and the
same operator is fast on one CPU and slow on the next.
"""

import time
from collections.abc import Callable, Mapping
from functools import cache

import torch

from frameworks.pytorch.openmp import alone_beside_steps, single_threaded

# oneDNN chooses the order of the weights by a number of rows; what is best for 64 is as good for 1 to 256, while what
# is chosen for 1 is half as fast at 16.
_ROWS_HINT = 64

_INPUTS, _OUTPUTS = 768, 1024
_DECODE_ROWS, _PREFILL_ROWS = 16, 64
_ROUNDS = 5
# With packed weights matmul is 0.8 to 1.3 times as fast as with plain ones with AVX2, 2 to 3 times with AVX-512, and
# half as fast with SSE 4.1. A choice between 0.8 and 0.5 depends on no chance.
_MAX_PACKED_TIME = 1.5
_MAX_BF16_TIME = 1.1


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Return weights [outputs, inputs], float32 or bfloat16 on a CPU, in oneDNN's blocked order.

    Raises RuntimeError where the CPU has no instructions for them.
    """
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS_HINT)
    return packed


@cache
def packs(dtype: torch.dtype) -> bool:
    """Return whether packed weights of this dtype are possible on this CPU and not slower than plain ones."""
    if dtype not in (torch.float32, torch.bfloat16) or not _has_onednn():
        return False
    rows, weight = torch.ones(_DECODE_ROWS, _INPUTS, dtype=dtype), torch.ones(_OUTPUTS, _INPUTS, dtype=dtype)
    try:
        packed = pack(weight)
        plain_s, packed_s = _seconds(lambda: _plain_matmul(rows, weight), lambda: _packed_matmul(rows, packed))
    except RuntimeError:
        return False
    return packed_s <= _MAX_PACKED_TIME * plain_s


@cache
def multiplies_bf16() -> bool:
    """Return whether this CPU has instructions for matmul of bfloat16 and they are not slower than float32."""
    if not _has_onednn() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    rows, weight = torch.ones(_PREFILL_ROWS, _INPUTS), torch.ones(_OUTPUTS, _INPUTS)
    narrow_rows, narrow_weight = rows.bfloat16(), weight.bfloat16()
    wide_s, narrow_s = _seconds(lambda: _plain_matmul(rows, weight), lambda: _plain_matmul(narrow_rows, narrow_weight))
    return narrow_s <= _MAX_BF16_TIME * wide_s


def _plain_matmul(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(rows, weight)


def _packed_matmul(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")
    return product


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def _seconds(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    found = shortest_seconds({"first": first, "second": second})
    return found["first"], found["second"]


def shortest_seconds(runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the shortest time of each on one thread, measured in turn: another process delays all alike."""
    with torch.inference_mode(), single_threaded():
        return _shortest(runs)


def shortest_seconds_beside_steps(runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """As `shortest_seconds`, while other threads compute."""
    with torch.inference_mode(), alone_beside_steps():
        return _shortest(runs)


def _shortest(runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    best = dict.fromkeys(runs, float("inf"))
    for turn in range(_ROUNDS + 1):
        for name, run in runs.items():
            started_s = time.perf_counter()
            run()
            if turn:  # the first makes machine code
                best[name] = min(best[name], time.perf_counter() - started_s)
    return best
