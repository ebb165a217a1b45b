"""Runs of tests on the CPUs that a machine can show: which there are, their failures, and processes that end."""

import sys

import pytest

from tests.support.cpus import ROOT, Variant, hogs, isa_files, run, variants

AVX2 = {"sse4_2", "avx2", "fma"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
OF_EVERY_CPU = ["two threads", "busy cores"]


def names(flags: set[str], numpy_features: list[str]) -> list[str]:
    return [each.name for each in variants(flags, numpy_features)]


def test_variants_of_newer_cpu_show_older_ones() -> None:
    of_blas = [f"OpenBLAS for {name}" for name in ("Haswell", "SkylakeX", "Zen", "Nehalem")]
    assert names(AVX512, ["X86_V4"]) == ["AVX2", *of_blas, "NumPy without AVX-512", *OF_EVERY_CPU]
    assert variants(AVX512, ["X86_V4", "AVX512_ICL"])[5].environ["NPY_DISABLE_CPU_FEATURES"] == "X86_V4 AVX512_ICL"


def test_variants_of_older_cpu_need_its_instructions() -> None:
    assert names(AVX2, []) == ["OpenBLAS for Haswell", "OpenBLAS for Zen", "OpenBLAS for Nehalem", *OF_EVERY_CPU]
    assert names(set(), []) == ["one thread", *OF_EVERY_CPU]


@pytest.mark.parametrize("flags", [set(), AVX2, AVX512])
def test_all_but_two_variants_take_one_thread(flags: set[str]) -> None:
    threads = [each.environ["OMP_NUM_THREADS"] for each in variants(flags, [])]
    assert set(threads[:-2]) == {"1"}
    assert threads[-2:] == ["2", "2"]


def test_isa_files_hold_the_marker() -> None:
    found = isa_files()
    assert str(ROOT / "tests/frameworks/pytorch/compiled/test_every_format.py") in found
    assert str(ROOT / "tests/support/test_pair_products.py") in found
    assert str(ROOT / "tests/frameworks/onnx/test_session.py") not in found


def test_failed_variant_is_named_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    fails = "import os, sys; print('first'); print('last'); sys.exit(os.environ.get('KIND') == 'b')"
    chosen = [Variant("good", {"KIND": "a"}), Variant("bad", {"KIND": "b"}), Variant("busy", {}, is_busy=True)]
    assert run(chosen, [sys.executable, "-S", "-c", fails], 1) == ["bad"]
    shown = capsys.readouterr().out
    assert shown.count("first") == 1
    assert shown.count("last") == 3


def test_hogs_end_with_their_block() -> None:
    with hogs(2) as processes:
        assert [each.poll() for each in processes] == [None, None]
    assert None not in [each.poll() for each in processes]
