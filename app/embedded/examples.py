"""Print more curl lines for the embedded models than the server does: ``python -m app.embedded.examples``."""

import argparse
import json
import os
import sys
from collections.abc import Sequence

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
NAMED = "Angela Merkel met Tim Cook in Berlin."


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the lines."""
    parser = argparse.ArgumentParser(
        prog="python -m app.embedded.examples", description="Print curl lines to paste into a shell."
    )
    parser.add_argument("--host", default=os.environ.get("ROUNDHOUSE_SERVER__HOST", "127.0.0.1"))
    parser.add_argument("--port", type=int, default=os.environ.get("ROUNDHOUSE_SERVER__PORT", "8080"))
    options = parser.parse_args(arguments)
    print("\n".join(curl_lines(options.host, options.port)))
    return 0


def curl_lines(host: str, port: int) -> list[str]:
    """Return one line for /health, and one for each kind of request to the embedded models."""
    url = f"http://{host}:{port}"
    text = ["A roundhouse is where engines wait.", "Locomotives are kept in a shed."]
    flat = [value for row in IMAGE_OF_3 for value in row]
    requests = (
        {"model_name": "minilm", "text": text},
        {"model_name": "minilm-onnx", "text": text},
        {"model_name": "digits", "input_data": flat},
        {"model_name": "digits", "inputs": {"image": [flat]}, "outputs": ["output_probability"]},
        {"model_name": "names", "text": NAMED, "parameters": {"aggregation_strategy": "first"}},
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
    picture = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,%s"}}
    shown = {"model": "tiny-vision", "messages": [{"role": "user", "content": [picture]}]}
    file = "$(base64 models/tiny-vision/example.jpg | tr -d '\\n')"
    header = "-H 'content-type: application/json'"
    return [
        f"curl -s {url}/health",
        f"curl -s {url}/models/shapes/infer -H 'content-type: image/jpeg' --data-binary @models/shapes/example.jpg",
        f"curl -s {url}/models/sounds/infer -H 'content-type: audio/wav' --data-binary @models/sounds/example.wav",
        f"printf '{json.dumps(shown)}' \"{file}\" | curl -s {url}/v1/chat/completions {header} -d @-",
        *(f"curl -s {url}/infer {header} -d '{json.dumps(request)}'" for request in requests),
        f"curl -s {url}/v1/chat/completions {header} -d '{json.dumps(call)}'",
    ]


if __name__ == "__main__":
    sys.exit(main())
