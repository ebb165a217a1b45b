"""vLLM's load tool: a short run against each route that it knows. The prompts are synthetic, of the model's tokens."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

URL = os.environ["ROUNDHOUSE_URL"]
FOLDER = os.environ["ROUNDHOUSE_MODEL"]
TOKENS = 6
REQUESTS = 4
STREAMS = 2
RUN_WITHIN_S = 300


def measure(folder: Path, route: str, model: str, *backend: str, sizes: Sequence[str]) -> Any:
    """Run the tool; return its report of one benchmark. It has no tokenizer but that of the folder."""
    report = folder / "report.json"
    served = ("kind=openai_http", f"target={URL}")
    words = [
        "run", "--disable-console",
        "--backend", ",".join((*served, f"request_format={route}", f"model={model}", *backend)),
        "--profile", f"kind=concurrent,streams={STREAMS}",
        "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--tokenizer", f"kind=hf_auto,model={FOLDER}",
        "--data", ",".join(("kind=synthetic_text", "prompt_tokens=12", *sizes)),
        "--output", f"kind=json,path={report}",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "guidellm", *words], check=True, timeout=RUN_WITHIN_S, cwd=folder)
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    return benchmark


def check_all_succeeded(benchmark: Any) -> None:
    """Check that no request failed. The tool may end before the last ones of a busy machine are counted."""
    totals = benchmark["metrics"]["request_totals"]
    assert totals["errored"] == 0
    assert totals["successful"] >= REQUESTS - STREAMS


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_texts(tmp_path: Path, route: str, stream: str) -> None:
    benchmark = measure(tmp_path, route, "tiny-llama", f"stream={stream}", sizes=[f"output_tokens={TOKENS}"])
    check_all_succeeded(benchmark)
    generated = [each["output_metrics"]["text_tokens"] for each in benchmark["requests"]["successful"]]
    assert set(generated) == {TOKENS}


def test_embeddings(tmp_path: Path) -> None:
    check_all_succeeded(measure(tmp_path, "/v1/embeddings", "minilm", sizes=[]))
