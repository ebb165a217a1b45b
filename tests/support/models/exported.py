"""Export the encoder of a folder as a graph that gives the states of its tokens."""

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers

INPUTS = ("input_ids", "attention_mask")
_WEIGHTS = "model.safetensors"


class _Output(torch.nn.Module):
    def __init__(self, model: Any, name: str) -> None:
        super().__init__()
        self.model = model
        self.name = name

    def forward(self, *inputs: torch.Tensor) -> Any:
        return getattr(self.model(**dict(zip(INPUTS, inputs, strict=True))), self.name)


def export_states(folder: Path, into: Path) -> Path:
    """Copy a folder of sentence-transformers, with a graph in the place of the weights of its encoder."""
    return _export(folder, into, transformers.AutoModel, "last_hidden_state")


def export_logits(folder: Path, into: Path) -> Path:
    """As `export_states`, of a masked language model and its logits."""
    return _export(folder, into, transformers.AutoModelForMaskedLM, "logits")


def _export(folder: Path, into: Path, kind: Any, output: str) -> Path:
    shutil.copytree(folder, into)
    (into / _WEIGHTS).unlink()
    model = kind.from_pretrained(str(folder), local_files_only=True).eval()
    ones = torch.ones(2, 7, dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Output(model, output),
            (ones, ones),
            str(into / "model.onnx"),
            dynamo=False,
            input_names=list(INPUTS),
            output_names=[output],
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in (*INPUTS, output)},
        )
    return into
