"""Export the encoder of a folder as a graph that gives the states of its tokens."""

import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

INPUTS = ("input_ids", "attention_mask")
_WEIGHTS = "model.safetensors"
_POOLED = ("pooler_output",)


class _Outputs(torch.nn.Module):
    def __init__(self, model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.names = inputs, outputs

    def forward(self, *values: torch.Tensor) -> Any:
        inputs, outputs = self.names
        found = self.model(**dict(zip(inputs, values, strict=True)))
        return tuple(getattr(found, name) for name in outputs)


def export_states(folder: Path, into: Path) -> Path:
    """Copy a folder of sentence-transformers, with a graph in the place of the weights of its encoder."""
    return export_outputs(folder, into)


def export_logits(folder: Path, into: Path, kind: Any = transformers.AutoModelForMaskedLM) -> Path:
    """As `export_states`, of a masked language model or a classifier, and its logits."""
    return export_outputs(folder, into, kind, ("logits",))


def export_outputs(
    folder: Path,
    into: Path,
    kind: Any = transformers.AutoModel,
    outputs: Sequence[str] = ("last_hidden_state",),
    inputs: Sequence[str] = INPUTS,
    *,
    dynamo: bool = False,
) -> Path:
    """As `export_states`, of these inputs and outputs. `dynamo`: by the newer exporter of torch."""
    shutil.copytree(folder, into)
    (into / _WEIGHTS).unlink()
    model = kind.from_pretrained(str(folder), local_files_only=True).eval()
    ones = tuple(torch.ones(2, 7, dtype=torch.long) for _ in inputs)
    axes = {name: {0: "batch", 1: "sequence"} for name in (*inputs, *outputs) if name not in _POOLED}
    options: dict[str, Any] = {"dynamic_axes": axes | {name: {0: "batch"} for name in outputs if name in _POOLED}}
    if dynamo:
        options = {"dynamic_shapes": [tuple({0: "batch", 1: "sequence"} for _ in inputs)], "verbose": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Outputs(model, inputs, outputs),
            ones,
            str(into / "model.onnx"),
            dynamo=dynamo,
            input_names=list(inputs),
            output_names=list(outputs),
            **options,
        )
    return into
