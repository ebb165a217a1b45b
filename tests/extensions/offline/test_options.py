"""`roundhouse run` before its model is loaded."""

import subprocess
import sys

from tests.e2e.server import ROOT


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_command_line_imports_no_pyarrow() -> None:
    code = "import sys; import app.cli; sys.exit('pyarrow' in sys.modules or 'extensions.offline' in sys.modules)"
    assert run_python(code).returncode == 0


def test_absent_pyarrow_names_extra() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; from app.cli import main; "
        "sys.exit(main(['run', 'model', 'in.csv', 'out.csv', '--column', 'text']))"
    )
    done = run_python(code)
    assert done.returncode == 1
    assert done.stderr == "run: expected the extra data, got none; make install EXTRAS=data\n"


def test_options_must_be_json() -> None:
    code = (
        "import sys; from app.cli import main; "
        "sys.exit(main(['run', 'model', 'in.csv', 'out.csv', '--column', 'text', '--options', '{']))"
    )
    done = run_python(code)
    assert done.returncode == 2
    assert "--options" in done.stderr
