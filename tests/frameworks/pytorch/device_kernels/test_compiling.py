"""Every kernel compiles to machine code of the cards that it is for."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has packages for Linux only")

MAX_SHARED_BYTES = 99 * 1024
"""Of a program, on all cards from Ampere on; those of data centres have more."""


def _compiled(capability: int, dtype: str, size: int, cache: Path) -> list[dict[str, Any]]:
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.frameworks.pytorch.device_kernels.compiling"),
            str(capability),
            dtype,
            str(size),
        ],
        env=environ | {"TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for each in found:
        assert each["machine_code_bytes"] > 0
        assert each["shared_bytes"] <= MAX_SHARED_BYTES, each
    return found


def test_kernels_compile_for_hopper(tmp_path: Path) -> None:
    found = _compiled(90, "bf16", 128, tmp_path)
    attention, layers = ("_attend_split", "_attend_part"), ("_norm", "_rotate_and_write", "_write", "_gate")
    sampling = ("_edit", "_fill_in", "_largest", "_weigh", "_collect", "_choose")
    assert {each["kernel"] for each in found} == {*attention, *layers, *sampling, "_multiply_groups", "_widen"}
    assert not any(each["spilled_bytes"] for each in found)
    assert all(each["multiplies_by_warp_groups"] for each in found if each["kernel"] == "_attend_part")


@pytest.mark.parametrize(
    ("capability", "dtype", "size"),
    [
        pytest.param(80, "bf16", 128, marks=pytest.mark.extended),
        pytest.param(120, "bf16", 128, marks=pytest.mark.extended),
        *[
            pytest.param(*card, marks=pytest.mark.nightly)
            for card in ((80, "fp32", 128), (89, "bf16", 256), (90, "fp32", 64), (100, "bf16", 64))
        ],
    ],
)
def test_kernels_compile_for_other_cards(capability: int, dtype: str, size: int, tmp_path: Path) -> None:
    """Ampere, Ada, Hopper and both kinds of Blackwell. Numbers that spill cost time, and products of float32 do."""
    found = _compiled(capability, dtype, size, tmp_path)
    spilled = [each for each in found if each["is_plain"] and each["spilled_bytes"]]
    assert not spilled or dtype == "fp32" or size == 256
