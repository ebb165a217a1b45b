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
RUN_WITHIN_S = 300


def measure(folder: Path, route: str, model: str, *backend: str, sizes: Sequence[str]) -> Any:
    """Run the tool; return its report of one benchmark. It has no tokenizer but that of the folder."""
    report = folder / "report.json"
    served = ("kind=openai_http", f"target={URL}")
    words = [
        "run", "--disable-console",
        "--backend", ",".join((*served, f"request_format={route}", f"model={model}", *backend)),
        "--profile", "kind=concurrent,streams=2",
        "--constraint", f"kind=max_requests,count={REQUESTS}",
        "--tokenizer", f"kind=hf_auto,model={FOLDER}",
        "--data", ",".join(("kind=synthetic_text", "prompt_tokens=12", *sizes)),
        "--output", f"kind=json,path={report}",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", "guidellm", *words], check=True, timeout=RUN_WITHIN_S, cwd=folder)
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    return benchmark


def counts(benchmark: Any) -> tuple[int, int]:
    totals = benchmark["metrics"]["request_totals"]
    return totals["successful"], totals["errored"]


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_texts(tmp_path: Path, route: str, stream: str) -> None:
    benchmark = measure(tmp_path, route, "tiny-llama", f"stream={stream}", sizes=[f"output_tokens={TOKENS}"])
    assert counts(benchmark) == (REQUESTS, 0)
    generated = [each["output_metrics"]["text_tokens"] for each in benchmark["requests"]["successful"]]
    assert generated == [TOKENS] * REQUESTS


def test_embeddings(tmp_path: Path) -> None:
    assert counts(measure(tmp_path, "/v1/embeddings", "minilm", sizes=[])) == (REQUESTS, 0)
