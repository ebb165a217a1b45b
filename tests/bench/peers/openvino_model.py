"""Convert a GGUF file of float32 into OpenVINO's format, in the environment of the peer.

`python -m tests.bench.peers.openvino_model FILE HALF FOLDER`. OpenVINO GenAI reads GGUF files of float16 alone, so it
builds the graph from HALF, the same model in float16, and the weights of FILE replace those of the graph.
"""

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_SETTINGS = {"enable_save_ov_model": True}
_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(file: Path, half: Path, folder: Path) -> None:
    """Write the folder. `half` is beside nothing that may be overwritten. Raises RuntimeError where a weight is not
    found in the graph.
    """
    import openvino
    import openvino_genai

    # Saves the graph and the tokenizers beside the file.
    openvino_genai.ContinuousBatchingPipeline(str(half), openvino_genai.SchedulerConfig(), "CPU", _SETTINGS)
    core = openvino.Core()
    model = core.read_model(half.parent / "openvino_model.xml")
    matrices = {_name(each.name): each for each in gguf.GGUFReader(file).tensors if len(each.shape) > 1}
    for node in model.get_ops():
        matrix = matrices.pop(node.get_friendly_name(), None)
        if matrix is not None:
            _replace(openvino, node, np.array(matrix.data, dtype=np.float32))
    if matrices:
        raise RuntimeError(f"OpenVINO's graph has no {', '.join(matrices)}")
    openvino.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)


def _name(name: str) -> str:
    if name in ("token_embd.weight", "output.weight"):
        return {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight"}[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers[{layer}].{_NAMES[part]}.weight"


def _replace(openvino: Any, node: Any, weights: "np.ndarray[Any, Any]") -> None:
    """Put the weights in the place of a constant of float16 and its conversion."""
    constant = openvino.opset13.constant(weights, dtype=np.float32)
    for target in node.output(0).get_target_inputs():
        target.get_node().output(0).replace(constant.output(0))


if __name__ == "__main__":
    convert(*map(Path, sys.argv[1:]))
