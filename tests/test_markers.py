"""The markers by which `make test-cpus` and the GPU kit find files of tests."""

from pathlib import Path

import pytest

from tests.conftest import check_marks_as_text
from tests.support.cpus import isa_files
from tools.gpu_kit.gpu_tests import files_with_gpu_tests

ROOT = Path(__file__).resolve().parents[1]


def test_isa_tests_are_found_by_their_marker() -> None:
    assert str(ROOT / "tests/frameworks/pytorch/compiled/test_amx_attention.py") in isa_files()


def test_gpu_kit_finds_its_tests() -> None:
    assert "tests/frameworks/pytorch/generation/test_gpu.py" in files_with_gpu_tests()


@pytest.mark.parametrize("mark", ["isa", "gpu"])
def test_marker_without_its_text_is_refused(request: pytest.FixtureRequest, tmp_path: Path, mark: str) -> None:
    item = pytest.Function.from_parent(request.node.parent, name="test_x", callobj=lambda: None)
    item.path = tmp_path / "test_x.py"
    item.path.write_text("marks = getattr(pytest.mark, name)")
    check_marks_as_text([item])
    item.add_marker(mark)
    with pytest.raises(pytest.UsageError, match=f"write the marker as pytest.mark.{mark}"):
        check_marks_as_text([item])
    item.path.write_text(f"@pytest.mark.{mark}")
    check_marks_as_text([item])
