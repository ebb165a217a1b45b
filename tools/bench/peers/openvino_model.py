"""Convert a Llama into OpenVINO's format, in the environment of the peer.

`python -m tools.bench.peers.openvino_model MODEL HALF FOLDER`. OpenVINO GenAI reads GGUF files of float16 alone. It
builds the graph from HALF, such a file, and the weights of the folder MODEL of Hugging Face replace those of the graph.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

_SETTINGS = {"enable_save_ov_model": True}
_HALF_ERROR = 1e-3


def convert(model: Path, half: Path, folder: Path) -> None:
    """Write the folder. The graph of float16 is written beside `half`.

    Raises RuntimeError where the graph has another weight, or none.
    """
    import openvino
    import openvino_genai

    openvino_genai.ContinuousBatchingPipeline(str(half), openvino_genai.SchedulerConfig(), "CPU", _SETTINGS)
    graph = openvino.Core().read_model(half.parent / "openvino_model.xml")
    exact = {_name(name): array for name, array in load_file(model / "model.safetensors").items() if array.ndim > 1}
    frequencies = _frequencies(json.loads((model / "config.json").read_text()))
    for node in graph.get_ops():
        if node.get_type_name() == "Constant" and tuple(node.shape) == frequencies.shape:
            # Of the rotary embedding. In float16 they turn the last tokens of a prompt by too much.
            exact[node.get_friendly_name()] = frequencies
        numbers = exact.pop(node.get_friendly_name(), None)
        if numbers is not None:
            _replace(openvino, node, numbers)
    if exact:
        raise RuntimeError(f"OpenVINO's graph has no {', '.join(exact)}")
    openvino.save_model(graph, folder / "openvino_model.xml", compress_to_fp16=False)


def _frequencies(config: dict[str, Any]) -> "np.ndarray[Any, Any]":
    """Return [1, half a head, 1]."""
    size, base = config["head_dim"], config["rope_parameters"]["rope_theta"]
    found: np.ndarray[Any, Any] = (base ** (-np.arange(0, size, 2) / size)).astype(np.float32)
    return found[None, :, None]


def _name(name: str) -> str:
    return re.sub(r"\.(\d+)\.", r"[\1].", name)


def _replace(openvino: Any, node: Any, numbers: "np.ndarray[Any, Any]") -> None:
    """Put the numbers in the place of a constant of float16 and its conversion."""
    if not np.allclose(node.data, numbers, rtol=_HALF_ERROR, atol=1e-6):
        raise RuntimeError(f"OpenVINO's graph has another {node.get_friendly_name()}")
    constant = openvino.opset13.constant(numbers, dtype=np.float32)
    for target in node.output(0).get_target_inputs():
        target.get_node().output(0).replace(constant.output(0))


if __name__ == "__main__":
    convert(*map(Path, sys.argv[1:]))
