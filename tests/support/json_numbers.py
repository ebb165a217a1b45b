"""The compiled reader of numbers in JSON, loaded."""

from functools import cache

import pytest

from app.protocols.shared.json.numerals.reader import NumberReader
from frameworks.core.machine_code.object_code import is_available
from tests.support.compiled_code import FOLDER


@cache
def loaded_reader() -> NumberReader:
    """Return a reader that is ready; the tests of the module are skipped without numba."""
    if not is_available():
        pytest.skip("numba is not installed", allow_module_level=True)
    reader = NumberReader(worth_bytes=0)
    reader.set_cache_folder(FOLDER)
    reader.is_ready(1)
    assert reader.wait()
    return reader
