"""Export the encoder of a folder as a graph that gives the states of its tokens."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers

INPUTS = ("input_ids", "attention_mask")
_WEIGHTS = "model.safetensors"


class _States(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(INPUTS, inputs, strict=True))).last_hidden_state


def export_states(folder: Path, into: Path) -> Path:
    """Copy a folder of sentence-transformers, with a graph in the place of the weights of its encoder."""
    shutil.copytree(folder, into)
    (into / _WEIGHTS).unlink()
    model = transformers.AutoModel.from_pretrained(str(folder), local_files_only=True).eval()
    ones = torch.ones(2, 7, dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _States(model),
            (ones, ones),
            str(into / "model.onnx"),
            dynamo=False,
            input_names=list(INPUTS),
            output_names=["last_hidden_state"],
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in (*INPUTS, "last_hidden_state")},
        )
    return into
