"""Print curl lines for the embedded models: ``python -m app.embedded.examples``."""

import argparse
import http.client
import json
import os
import sys
import time
from collections.abc import Sequence

POLL_S = 0.5

IMAGE_OF_3 = (
    (0, 0, 9, 16, 10, 1, 0, 0),
    (0, 0, 8, 3, 16, 4, 0, 0),
    (0, 0, 0, 5, 14, 2, 0, 0),
    (0, 0, 2, 16, 15, 7, 0, 0),
    (0, 0, 0, 0, 3, 15, 2, 0),
    (0, 4, 6, 0, 0, 13, 7, 0),
    (0, 6, 13, 1, 5, 16, 3, 0),
    (0, 0, 10, 16, 15, 5, 0, 0),
)
"""An image of scikit-learn's digits: rows of grey values from 0 to 16."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the lines, with --when-ready after the server is ready. Returns 0, or 1 if the server ended before."""
    parser = argparse.ArgumentParser(
        prog="python -m app.embedded.examples", description="Print curl lines to paste into a shell."
    )
    parser.add_argument("--host", default=os.environ.get("ROUNDHOUSE_SERVER__HOST", "127.0.0.1"))
    parser.add_argument("--port", type=int, default=os.environ.get("ROUNDHOUSE_SERVER__PORT", "8080"))
    parser.add_argument("--when-ready", type=int, metavar="PID", help="wait until the server in this process is ready")
    options = parser.parse_args(arguments)
    if options.when_ready is not None:
        if not _wait_until_ready(options.host, options.port, options.when_ready):
            return 1
        print("\nready; in another shell:\n")
    print("\n".join(curl_lines(options.host, options.port)), flush=True)
    return 0


def curl_lines(host: str, port: int) -> list[str]:
    """Return one line for /health, and one for each kind of request to the embedded models, a tool call included."""
    url = f"http://{host}:{port}"
    text = ["A roundhouse is where engines wait.", "Locomotives are kept in a shed."]
    flat = [value for row in IMAGE_OF_3 for value in row]
    requests = (
        {"model_name": "minilm", "text": text},
        {"model_name": "minilm-onnx", "text": text},
        {"model_name": "digits", "input_data": flat},
        {"model_name": "digits", "inputs": {"image": [flat]}, "outputs": ["output_probability"]},
        {"model_name": "tiny-llama", "prompt": "A list is", "max_tokens": 40},
        {"model_name": "tiny-llama", "messages": [{"role": "user", "content": "What is a list?"}], "stream": True},
    )
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "weather", "description": "Current weather of a city.", "parameters": parameters}
    call = {
        "model": "tiny-llama",
        "messages": [{"role": "user", "content": "How warm is it in Bern?"}],
        "tools": [{"type": "function", "function": function}],
        "temperature": 0,
    }
    header = "-H 'content-type: application/json'"
    return [
        f"curl -s {url}/health",
        f"curl -s {url}/models/shapes/infer -H 'content-type: image/jpeg' --data-binary @models/shapes/example.jpg",
        *(f"curl -s {url}/infer {header} -d '{json.dumps(request)}'" for request in requests),
        f"curl -s {url}/v1/chat/completions {header} -d '{json.dumps(call)}'",
    ]


def _wait_until_ready(host: str, port: int, server_pid: int) -> bool:
    while _is_alive(server_pid):
        if _is_ready(host, port):
            return True
        time.sleep(POLL_S)
    return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _is_ready(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=2.0)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
