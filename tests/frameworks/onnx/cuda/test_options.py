"""The options of a session on CUDA or TensorRT, for each device, memory and entry."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frameworks.onnx.cuda.declared_inputs import DeclaredInputs
from frameworks.onnx.cuda.options import SessionNeeds, cuda_options, rows_profile, tensorrt_options, with_options
from frameworks.onnx.providers import ProviderChoice
from tests.support.fake_probe import GIB, cuda

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
DEVICE = {"device_id": "1"}
NEEDS = SessionNeeds(max_bytes=8 * GIB, weight_bytes=3 * GIB, max_rows=32)
ROWS_ARE_FREE = DeclaredInputs({"x": (None, 3, 8), "scale": (4,)})


def test_arena_is_limited_to_grant() -> None:
    assert cuda_options(NEEDS)["gpu_mem_limit"] == str(8 * GIB)
    assert "gpu_mem_limit" not in cuda_options(replace(NEEDS, max_bytes=None))


def test_cuda_options_suit_a_server() -> None:
    assert cuda_options(NEEDS) == {
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
        "do_copy_in_default_stream": "1",
        "gpu_mem_limit": str(8 * GIB),
    }


def test_captured_graphs_search_all_convolutions() -> None:
    options = cuda_options(replace(NEEDS, captures_graphs=True))
    assert (options["enable_cuda_graph"], options["cudnn_conv_algo_search"]) == ("1", "EXHAUSTIVE")


def test_workspace_is_what_weights_leave() -> None:
    assert tensorrt_options(NEEDS)["trt_max_workspace_size"] == str(5 * GIB)
    assert tensorrt_options(replace(NEEDS, weight_bytes=9 * GIB))["trt_max_workspace_size"] == str(64 * 1024**2)
    assert "trt_max_workspace_size" not in tensorrt_options(replace(NEEDS, max_bytes=None))


def test_engines_are_kept_in_their_folder(tmp_path: Path) -> None:
    options = tensorrt_options(replace(NEEDS, engines=tmp_path))
    assert (options["trt_engine_cache_enable"], options["trt_timing_cache_enable"]) == ("True", "True")
    assert options["trt_engine_cache_path"] == options["trt_timing_cache_path"] == str(tmp_path)
    assert not any("cache" in key for key in tensorrt_options(NEEDS))


@pytest.mark.parametrize("is_half", [False, True])
def test_half_precision_follows_the_graph(is_half: bool) -> None:
    options = tensorrt_options(replace(NEEDS, inputs=DeclaredInputs({}, is_half)))
    assert options["trt_fp16_enable"] == str(is_half)


def test_profile_spans_rows_of_a_batch() -> None:
    assert rows_profile(ROWS_ARE_FREE, 32) == {
        "trt_profile_min_shapes": "x:1x3x8",
        "trt_profile_opt_shapes": "x:32x3x8",
        "trt_profile_max_shapes": "x:32x3x8",
    }
    two = DeclaredInputs({"ids": (None, 128), "mask": (None, 128)})
    assert rows_profile(two, 4)["trt_profile_opt_shapes"] == "ids:4x128,mask:4x128"


@pytest.mark.parametrize(
    "shapes",
    [{}, {"x": (4, 3)}, {"x": None}, {"x": (None, None)}, {"x": (3, None)}, {"x": ()}, {"x:0": (None, 3)},
     {"a,b": (None, 3)}, {"x": (None, 3), "y": (None, None)}],
)  # fmt: skip
def test_other_free_dimensions_have_no_profile(shapes: dict[str, tuple[int | None, ...] | None]) -> None:
    assert rows_profile(DeclaredInputs(shapes), 32) == {}


def test_options_keep_device_of_choice() -> None:
    choice = ProviderChoice([(TENSORRT, DEVICE), (CUDA, DEVICE), (CPU, {})], cuda(1, GIB))
    chosen = with_options(choice, NEEDS)
    assert [name for name, _ in chosen.session_providers] == [TENSORRT, CUDA, CPU]
    tensorrt, on_cuda, cpu = (options for _, options in chosen.session_providers)
    assert (tensorrt, on_cuda, cpu) == (DEVICE | tensorrt_options(NEEDS), DEVICE | cuda_options(NEEDS), {})


def test_attempts_drop_profile_then_providers() -> None:
    choice = ProviderChoice([(TENSORRT, DEVICE), (CUDA, DEVICE), (CPU, {})], cuda(1, GIB))
    chosen = with_options(choice, replace(NEEDS, inputs=ROWS_ARE_FREE))
    assert chosen.fallbacks is not None
    attempts = [[name for name, _ in each] for each in chosen.fallbacks]
    assert attempts == [[TENSORRT, CUDA, CPU], [CUDA, CPU], [CPU]]
    first, again = chosen.session_providers[0][1], chosen.fallbacks[0][0][1]
    assert {*first} - {*again} == {*rows_profile(ROWS_ARE_FREE, 32)}
    assert chosen.fallbacks[1][0] == (CUDA, DEVICE | cuda_options(NEEDS))


def test_captured_graphs_have_no_other_attempt() -> None:
    choice = ProviderChoice([(CUDA, DEVICE), (CPU, {})], cuda(1, GIB))
    assert with_options(choice, replace(NEEDS, captures_graphs=True)).fallbacks == ()


@given(
    st.builds(
        SessionNeeds,
        st.none() | st.integers(0, 2**40),
        st.integers(0, 2**40),
        st.integers(1, 2**20),
        st.booleans(),
        st.none() | st.just(Path("engines")),
        st.just(ROWS_ARE_FREE),
    )
)
def test_options_are_texts_for_all_needs(needs: SessionNeeds) -> None:
    for options in (cuda_options(needs), tensorrt_options(needs)):
        assert all(isinstance(value, str) and value for value in options.values())
