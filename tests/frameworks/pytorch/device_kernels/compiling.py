"""Compile every kernel for cards that this machine does not have, and print a line of JSON for each.

Triton compiles without a GPU: to PTX, and by NVIDIA's assembler to machine code. Run this as a process of its own,
without Triton's interpreter.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from frameworks.pytorch.device_kernels import (
    decode_attention,
    group_matmul,
    layer_kernels,
    prefill_attention,
    sampling,
    unread_tokens,
)
from frameworks.pytorch.device_kernels.launching import dot_rows

_POINTERS = {
    **dict.fromkeys(("table", "lengths", "arrivals", "firsts", "counts", "starts", "blocks", "offsets"), "*i32"),
    **dict.fromkeys(("slopes", "sinks", "outputs", "sums", "cosine", "sine"), "*fp32"),
    **dict.fromkeys(("scales", "shifts"), "*fp16"),
    **dict.fromkeys(("token_ids", "sources", "ids", "positions", "found_columns", "num_found"), "*i32"),
    **dict.fromkeys(("edits", "before"), "*i32"),
    **dict.fromkeys(("maxima", "row_maxima", "weights", "found"), "*fp32"),
    **dict.fromkeys(("totals", "levels"), "*i64"),
    "parameters": "*fp64",
    **dict.fromkeys(("scale", "softcap", "epsilon", "max_weight"), "fp32"),
}
_NUMBERS = (
    *("size", "query_stride", "row_stride", "head_stride", "part_stride", "block_stride", "sequence_stride"),
    *("num_rows", "num_outputs", "num_inputs"),
)
_WIDE = (sampling._largest, sampling._weigh, sampling._collect)
_BLACKWELL = 100
_DTYPES = {"bf16": (tl.bfloat16, 2), "fp32": (tl.float32, 4)}


def _kernels(dtype: str, size: int, capability: int) -> Iterator[tuple[Any, dict[str, Any], int]]:
    """Yield kernels with their constants and stages, for heads of this size."""
    dot, itemsize = _DTYPES[dtype]
    columns = dot_rows(size)
    heads = {"HEADS": 8, "SIZE": size, "COLUMNS": columns, "TOKENS": 32}
    rows, keys, stages = prefill_attention.tile_of(columns * itemsize, capability // 10)
    for is_plain in (True, False):
        has = dict.fromkeys(("HAS_SOFTCAP", "HAS_SLOPES", "HAS_SINKS"), not is_plain)
        scores = heads | has | {"WINDOW": 0 if is_plain else 100, "DOT": dot}
        yield decode_attention._attend_split, scores | {"GROUP": 4, "GROUP_ROWS": 16, "SPLITS": 8 - 7 * is_plain}, 3
        yield prefill_attention._attend_part, scores | {"QUERY_HEADS": 32, "ROWS": rows, "KEYS": keys}, stages
    if (dtype, size) == ("bf16", 128):
        yield layer_kernels._norm, {"HAS_RESIDUAL": True, "COLUMNS": 8192}, 3
        of_rotation = heads | {"QUERY_HEADS": 32, "HALF": size // 2, "COLUMNS": columns // 2, "HAS_NORMS": True}
        yield layer_kernels._rotate_and_write, of_rotation, 3
        yield layer_kernels._write, heads, 3
        yield layer_kernels._gate, {"IS_GELU": True, "COLUMNS": 1024}, 3
        for bits, is_float in ((4, False), (8, False), (8, True)):
            of_weights = {"GROUP": 32, "BITS": bits, "HAS_SHIFTS": bits == 4, "IS_FLOAT": is_float}
            of_rows = {"ROWS": 16, "OUTPUTS": 32, "CHUNK": 32, "HAS_BIAS": False, "DOT": dot}
            yield group_matmul._multiply_groups, of_weights | of_rows, 3
            yield group_matmul._widen, of_weights | {"COLUMNS": 1024}, 3
        yield unread_tokens._fill_in, {"ROWS": 32}, 3
        # Of 128,256 logits.
        splits = {"SPLITS": 32, "COLUMNS": sampling._COLUMNS}
        of_edits = {"EDITS": unread_tokens._EDITS, "EDIT_COLUMNS": unread_tokens.EDIT_COLUMNS}
        yield unread_tokens._edit, of_edits | {"NUM_PARAMETERS": sampling.PARAMETERS}, 3
        yield sampling._largest, splits, 3
        of_logits = splits | {"SPLIT_ROWS": 32, "NUM_PARAMETERS": sampling.PARAMETERS}
        yield sampling._weigh, of_logits | {"LEVELS": sampling._LEVELS}, 3
        yield sampling._collect, of_logits | {"LEVELS": sampling._LEVELS}, 3
        yield sampling._choose, of_logits | {"CANDIDATES": sampling._CANDIDATES}, 3


def _compile(
    kernel: Any, constants: dict[str, Any], stages: int, dtype: str, capability: int, is_float8: bool = False
) -> dict[str, Any]:
    """`is_float8`: keys and values are the bytes of float8."""
    signature = {}
    for name in kernel.arg_names:
        usual = "i32" if name in _NUMBERS else f"*{dtype}"
        signature[name] = "constexpr" if name in constants else _POINTERS.get(name, usual)
    if constants.get("TOKENS") and is_float8:
        signature |= {"keys": "*u8", "values": "*u8"}
    if "BITS" in constants:
        signature["values"] = "*u8" if constants["BITS"] == 4 or constants["IS_FLOAT"] else "*i8"
    elif "EDITS" in constants:
        signature["values"] = "*fp32"
    # As at a launch: tensors of torch are aligned, and so are rows of 16 numbers.
    aligned = [[*each] for each in [("tt.divisibility", 16)]]
    attributes = {
        (index,): aligned
        for index, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*")
        or name in ("query_stride", "row_stride", "size", "num_inputs", "num_outputs")
    }
    compiled = triton.compile(
        ASTSource(kernel, signature, constants, attributes),
        target=GPUTarget("cuda", capability, 32),
        options={"num_stages": stages, "num_warps": sampling._WARPS if kernel in _WIDE else 4},
    )
    return {
        "kernel": kernel.__name__,
        "size": constants.get("SIZE"),
        "is_plain": not constants.get("WINDOW"),
        "dtype": dtype,
        "is_float8": is_float8,
        "capability": capability,
        "shared_bytes": compiled.metadata.shared,
        "machine_code_bytes": len(compiled.asm["cubin"]),
        "spilled_bytes": _spilled_bytes(compiled.asm["ptx"], capability),
        "multiplies_by_warp_groups": "wgmma" in compiled.asm["ptx"],
    }


def _spilled_bytes(ptx: str, capability: int) -> int:
    """Return the bytes of registers that a thread spills, as NVIDIA's assembler reports them."""
    name = "ptxas-blackwell" if capability >= _BLACKWELL else "ptxas"
    assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert target is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        command = [str(assembler), "-v", f"--gpu-name={target[1]}", str(source), "-o", f"{folder}/kernel.cubin"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return sum(int(each) for each in re.findall(r"(\d+) bytes spill", report))


def main() -> None:
    """Compile for a capability, a dtype and a size of heads: the command line."""
    capability, dtype, size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    for kernel, constants, stages in _kernels(dtype, size, capability):
        print(json.dumps(_compile(kernel, constants, stages, dtype, capability)), flush=True)
        if "TOKENS" in constants and dtype == "bf16":
            print(json.dumps(_compile(kernel, constants, stages, dtype, capability, is_float8=True)), flush=True)


if __name__ == "__main__":
    main()
