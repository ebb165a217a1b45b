"""Sessions of paths, and bfloat16, which numpy has not: rounded as ml_dtypes rounds it."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st
from structlog.testing import capture_logs

from frameworks.core.errors import InvalidModel, OutOfMemory
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


class Attempts:
    """Stand for ONNX Runtime: sessions open with some first providers only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, errors: dict[str, str]) -> None:
        """`errors`: by first provider, the message of its error."""
        self.made: list[dict[str, Any]] = []

        def make(_path: str, _options: object, **arguments: Any) -> Any:
            self.made.append(arguments)
            first = arguments["providers"][0][0]
            if first in errors:
                raise RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : {errors[first]}")
            return SimpleNamespace(first=first)

        monkeypatch.setattr(ort, "InferenceSession", make)


ON_CUDA: list[Any] = [("CUDAExecutionProvider", {"device_id": "1", "gpu_mem_limit": "5"}), ("CPUExecutionProvider", {})]
ON_TENSORRT: list[Any] = [("TensorrtExecutionProvider", {"device_id": "1"}), *ON_CUDA]


def open_first(choice: ProviderChoice) -> Any:
    return open_session(Path("model.onnx"), choice, 1, 1)


def test_failed_provider_falls_back_with_options(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts(monkeypatch, {"TensorrtExecutionProvider": "no engine could be built"})
    with capture_logs() as logs:
        session = open_first(ProviderChoice(ON_TENSORRT, None, fallbacks=(ON_CUDA, ON_CUDA[1:])))
    assert session.first == "CUDAExecutionProvider"
    assert [each["providers"] for each in attempts.made] == [ON_TENSORRT, ON_CUDA]
    assert {each["enable_fallback"] for each in attempts.made} == {0}
    assert [(entry["provider"], entry["reason"]) for entry in logs] == [
        ("TensorrtExecutionProvider", "no engine could be built")
    ]


def test_full_device_is_not_replaced_by_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts(monkeypatch, {"CUDAExecutionProvider": "CUDA failure 2: out of memory ; GPU=1"})
    with pytest.raises(OutOfMemory, match="the graph does not fit into memory"):
        open_first(ProviderChoice(ON_CUDA, None, fallbacks=(ON_CUDA[1:],)))
    assert len(attempts.made) == 1


def test_last_error_of_attempts_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    Attempts(monkeypatch, {name: f"{name} fails" for name in ("CUDAExecutionProvider", "CPUExecutionProvider")})
    with pytest.raises(InvalidModel, match="onnxruntime cannot load it: CPUExecutionProvider fails"):
        open_first(ProviderChoice(ON_CUDA, None, fallbacks=(ON_CUDA[1:],)))


def test_choice_without_attempts_opens_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = Attempts(monkeypatch, {})
    open_first(ProviderChoice([("CPUExecutionProvider", {})], None))
    assert attempts.made == [
        {"providers": [("CPUExecutionProvider", {})], "disabled_optimizers": ["SkipLayerNormFusion"]}
    ]


@pytest.mark.parametrize(
    "message",
    [
        "This session cannot use the graph capture feature as requested by the user as the model has control flow",
        "This session cannot use the CUDA Graph feature as requested by the user",
    ],
)
def test_refused_capture_names_its_key(message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Attempts(monkeypatch, {"CUDAExecutionProvider": message})
    reason = r"model\.onnx: cuda_graph: expected a graph whose nodes all run on CUDA, got others \(This session"
    with pytest.raises(InvalidModel, match=reason):
        open_first(ProviderChoice(ON_CUDA, None, fallbacks=()))
