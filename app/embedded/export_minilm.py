"""Export ``minilm`` to ``minilm-onnx``, all-MiniLM-L6-v2 as one ONNX file, and compare the two.

With sdpa attention and opset 23 the exporter writes one Attention operator per layer, and ONNX Runtime 1.31 fuses the
rest (SkipLayerNormalization, BiasGelu). Milliseconds on one core of an AMD EPYC, best of several runs:

    attention  opset   1 x 20   8 x 64   32 x 128   4 x 256   nodes
    sdpa       23         5.9    123.2       1123       275     188
    eager      23         5.9    123.7       1170       284     213
    eager      20, 21     5.9    124.5       1131       282     213
    sdpa       20, 21     6.1    124.9       1177       301     285    mask and NaN check in every layer
    either     18         6.4    125.0       1174       295     237    Gelu in five operators

Opset 24 gives the same graph as 23. Differences below 3 % are noise.
"""

import contextlib
import logging
import shutil
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.embedded import copy_minilm
from app.embedded.folder import PreparationError, prepare_folder

if TYPE_CHECKING:
    import torch

NAME = "minilm-onnx"
GRAPH = "model.onnx"
OPSET = 23
ATTENTION = "sdpa"
LONGEST_SEQUENCE = 512
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUT = "last_hidden_state"
EXPORTER_VERSION = "1"
TOLERANCE = 1e-4
CHECKED_BATCHES = ((1, 1), (1, 20), (3, 17), (8, 64), (2, 256))
"""Batches for the comparison of graph and source: (texts, tokens of the longest text)."""


def prepare(into: Path) -> bool:
    """Export ``into/minilm`` to ``into/minilm-onnx`` (91 MB, about 15 s), unless the same export exists.

    Returns: True if it was exported, False if it exists.
    Raises: PreparationError if the outputs of graph and source differ by more than TOLERANCE.
    """
    source = into / copy_minilm.NAME
    return prepare_folder(into / NAME, recipe(), lambda folder: _export(source, folder))


def recipe() -> dict[str, str]:
    """Return the inputs of the export. A change of any of them triggers another export."""
    torch_version = metadata.version("torch").partition("+")[0]  # "+cpu" and "+cu130" export the same graph
    return {"weights_sha256": copy_minilm.WEIGHTS_SHA256, "torch": torch_version, "exporter": EXPORTER_VERSION}


def _export(source: Path, folder: Path) -> None:
    for name in copy_minilm.TEXT_FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / name, folder / name)
    with _quiet():
        module = _module(source)
        _write_graph(module, folder / GRAPH)
    _compare(module, folder / GRAPH)


def _module(source: Path) -> "torch.nn.Module":
    import torch
    from transformers import AutoModel

    class LastHiddenState(torch.nn.Module):
        """The encoder with INPUTS as positional arguments and one output tensor."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder: Any = AutoModel.from_pretrained(
                source, attn_implementation=ATTENTION, dtype=torch.float32, local_files_only=True
            )

        def forward(self, *inputs: torch.Tensor) -> Any:
            return self.encoder(**dict(zip(INPUTS, inputs, strict=True))).last_hidden_state

    return LastHiddenState().eval()


def _write_graph(module: "torch.nn.Module", path: Path) -> None:
    import torch

    batch, sequence = torch.export.Dim("batch"), torch.export.Dim("sequence", max=LONGEST_SEQUENCE)
    program = torch.onnx.export(
        module,
        _batch(rows=2, columns=7),
        dynamo=True,
        opset_version=OPSET,
        input_names=INPUTS,
        output_names=(OUTPUT,),
        dynamic_shapes=(tuple({0: batch, 1: sequence} for _ in INPUTS),),
        verbose=False,
    )
    assert program is not None  # always the case with dynamo=True
    for node in program.model.graph:
        node.metadata_props.clear()  # stack traces with paths of this machine
    program.save(path, external_data=False)


def _compare(module: "torch.nn.Module", path: Path) -> None:
    import onnxruntime
    import torch

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for rows, columns in CHECKED_BATCHES:
        inputs = _batch(rows, columns)
        with torch.inference_mode():
            expected = module(*inputs).numpy()
        (found,) = session.run([OUTPUT], {name: x.numpy() for name, x in zip(INPUTS, inputs, strict=True)})
        difference = float(abs(found - expected).max()) if found.shape == expected.shape else float("inf")
        if not difference <= TOLERANCE:  # NaN fails too
            raise PreparationError(
                f"{path}: expected a difference of at most {TOLERANCE:.0e} from the source, got {difference:.2e} for "
                f"{rows} texts of up to {columns} tokens; install other versions of torch and onnxruntime"
            )


def _batch(rows: int, columns: int) -> "tuple[torch.Tensor, ...]":
    """Return INPUTS for ``rows`` texts, int64 [rows, columns]: the first has ``columns`` tokens, the next fewer."""
    import torch

    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    lengths = [max(1, columns - columns * row // (rows + 1)) for row in range(rows)]
    mask = torch.tensor([[int(column < length) for column in range(columns)] for length in lengths])
    token_ids = torch.randint(1000, 30000, (rows, columns), generator=generator) * mask  # 0 is the padding token
    return token_ids, mask, torch.zeros_like(mask)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and logs of torch and transformers during the export: users cannot act on them."""
    import torch.onnx  # noqa: F401  (its import sets the levels of its loggers)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    exporter_log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        exporter_log.setLevel(level)
