"""What a graph and its quantised copy are both given, to be compared."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from frameworks.errors import InvalidModel, RoundhouseError
from frameworks.onnx.session import OnnxModel
from frameworks.onnx.text_model import OnnxTextModel
from frameworks.onnx.trials import random_row
from frameworks.quantization.warm_up_texts import WARM_UP_TEXTS
from frameworks.types import Batch, TensorBatch, TensorType, TokenBatch, Value

_TEXTS_PER_BATCH = 8
_RANDOM_BATCHES = 16


def comparison_batches(model: OnnxModel | OnnxTextModel, file: Path) -> list[Batch]:
    """The warm-up texts in batches of like length, as a server runs them; for tensors, random values from a fixed seed.

    Raises InvalidModel where the graph does not run on them.
    """
    batches: list[Batch] = []
    if isinstance(model, OnnxTextModel):
        assert model.tokenizer is not None
        token_ids = sorted(model.tokenizer.tokenize([*WARM_UP_TEXTS], truncate=True), key=len)
        batches += [
            TokenBatch(token_ids[start : start + _TEXTS_PER_BATCH])
            for start in range(0, len(token_ids), _TEXTS_PER_BATCH)
        ]
    else:
        random = np.random.default_rng(0)
        batches += [TensorBatch(_random_inputs(model, file, random)) for _ in range(_RANDOM_BATCHES)]
    try:
        model.infer(batches[0])
    except RoundhouseError as error:
        raise InvalidModel(
            f"{file}: the graph cannot be compared with its quantised copy: {error.message}; "
            "set input_shape, or leave quantized out"
        ) from error
    return batches


def _random_inputs(model: OnnxModel, file: Path, random: np.random.Generator) -> dict[str, Value]:
    inputs: dict[str, Value] = {}
    for name, zeros in model.example_inputs().items():
        declared = model.spec.inputs_by_name[name]
        if not isinstance(zeros, np.ndarray) or not isinstance(declared.type, TensorType):
            raise InvalidModel(
                f'{file}: its input "{name}" is a {declared.type}, for which there are no warm-up inputs to compare a '
                "quantised copy on; leave quantized out"
            )
        # The first axis of a row is its own: one more makes all of the shape random.
        whole = replace(declared, type=TensorType(declared.type.dtype, None))
        inputs[name] = random_row(whole, (1, *zeros.shape), random)[0]
    return inputs
