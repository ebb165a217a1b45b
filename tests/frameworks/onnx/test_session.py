"""Sessions of paths, and bfloat16, which numpy has not: rounded as ml_dtypes rounds it."""

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from frameworks.core.errors import InvalidModel
from frameworks.onnx.providers import ProviderChoice
from frameworks.onnx.session import bfloat16_bits, open_session
from frameworks.types import Array
from tests.support.loops import HANGS_AFTER_S


@given(np_st.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32)))
def test_rounding_is_to_nearest_even(numbers: Array) -> None:
    reference = numbers.astype(ml_dtypes.bfloat16)
    ours = bfloat16_bits(numbers).view(ml_dtypes.bfloat16)
    assert ours.dtype == reference.dtype
    is_nan = np.isnan(numbers)
    assert ours[~is_nan].tobytes() == reference[~is_nan].tobytes()
    assert np.isnan(ours[is_nan].astype(np.float32)).all()


def test_every_bit_pattern_of_nan_stays_nan() -> None:
    payloads = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    ours = bfloat16_bits(payloads.view(np.float32)).view(ml_dtypes.bfloat16).astype(np.float32)
    assert np.isnan(ours).all()


def test_ties_round_to_even() -> None:
    # Halfway between two bfloat16 numbers, the one with the even last bit is chosen.
    numbers = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF], np.uint32).view(np.float32)
    assert [hex(bits) for bits in bfloat16_bits(numbers)] == ["0x3f80", "0x3f82", "0x3f81", "0x7f80"]


def test_scalar_stays_scalar() -> None:
    assert bfloat16_bits(np.ones((), np.float32)).shape == ()


def test_path_that_is_not_utf8_is_refused() -> None:
    path = Path(os.fsdecode(b"mod\xe8le.onnx"))
    with pytest.raises(InvalidModel, match="expected a path in UTF-8, which onnxruntime needs; rename the file"):
        open_session(path, ProviderChoice([("CPUExecutionProvider", {})], None), 1, 1)


def test_import_starts_no_telemetry(tmp_path: Path) -> None:
    """ONNX Runtime opens its store in the home folder at the import, and sends it from a thread."""
    environment = os.environ | {"HOME": str(tmp_path)}
    for name in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    words = [sys.executable, "-c", "import frameworks.onnx.session"]
    subprocess.run(words, env=environment, cwd=Path(__file__).parents[3], check=True, timeout=HANGS_AFTER_S)
    assert not list(tmp_path.iterdir())
