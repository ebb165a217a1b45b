"""The kind of a CPU, by its flags."""

import platform
from pathlib import Path

import pytest

from frameworks.quantization.ranges import cpu_capability


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor : 0\nflags\t\t: fma avx2 avx512bw avx512_vnni\n", "avx512_vnni"),
        ("flags\t\t: avx2 avx_vnni\n", "avx_vnni"),
        ("flags\t\t: avx2 avx512bw\n", "avx512bw"),
        ("flags\t\t: fma avx2\nflags\t\t: fma avx2\n", "avx2"),
        ("Features\t: fp asimd asimddp i8mm\n", "i8mm"),
        ("flags\t\t: sse4_1\n", ""),
        ("", ""),
    ],
)
def test_best_instructions_name_the_cpu(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text, encoding="utf-8")
    assert cpu_capability(file) == f"{platform.machine()} {expected}".strip()


def test_system_without_cpuinfo_names_processor(tmp_path: Path) -> None:
    assert cpu_capability(tmp_path / "absent").startswith(platform.machine())
