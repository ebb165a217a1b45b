"""The imports of a server leave out unused parts. Each test has a process of its own."""

import subprocess
import sys

IMPORT = """
import gc, os, sys
from app.cli.lean_imports import lean_imports

with lean_imports():
    assert not gc.isenabled()
    import app.server.process
assert gc.isenabled()
assert gc.get_freeze_count()
assert os.environ["PYDANTIC_DISABLE_PLUGINS"] == "__all__"
assert "uvicorn" in sys.modules
assert "rich" not in sys.modules
assert "watchfiles" not in sys.modules
"""

KEEP = """
import os, sys
from app.cli.lean_imports import lean_imports

os.environ["PYDANTIC_DISABLE_PLUGINS"] = "one"
import rich
with lean_imports():
    import structlog
assert os.environ["PYDANTIC_DISABLE_PLUGINS"] == "one"
assert sys.modules["rich"] is rich
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_imports_leave_out_unused_parts() -> None:
    run(IMPORT)


def test_imports_keep_what_is_there() -> None:
    run(KEEP)
