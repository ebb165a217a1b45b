"""Every operation of the OpenAPI document answers generated requests as the document says."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.configs import EMBEDDED, text_entries
from tests.e2e.conftest import Start
from tests.e2e.server import WAIT_S
from tests.support.models.tasks.speaking import save_speaking_model

# Not among them: that valid bodies are accepted, and that no response is a 5xx. The tests unload models and name some
# that do not exist.
CHECKS = (
    "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "negative_data_rejection", "unsupported_method", "allow_header_conformance",
)  # fmt: skip
EXAMPLES = 4
TIME_LIMIT_S = 900


@pytest.mark.extended
@pytest.mark.timeout(1200)
def test_operations_answer_as_described(start: Start, tmp_path: Path) -> None:
    (tmp_path / "voice").mkdir()
    voice = f'[[models.torch_models]]\nname = "voice"\npath = "{save_speaking_model(tmp_path / "voice")}"\n'
    server = start(EMBEDDED + text_entries(tmp_path) + voice).wait_ready()
    # Not the phase `coverage`: it has ten times as many requests, some of them larger than max_body_bytes.
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--seed", "1"]
    command += ["--phases", "examples,fuzzing", "--max-examples", str(EXAMPLES), "--checks", ",".join(CHECKS)]
    command += ["--request-timeout", str(WAIT_S), "--no-shrink", "--continue-on-failure", "--warnings", "off"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-20_000:]
    assert "API Operations:" in done.stdout
    # No bug of the server either.
    server.check_log()
