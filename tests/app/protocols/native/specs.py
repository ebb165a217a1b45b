"""Specs of models, for tests of decoders."""

from dataclasses import replace

from app.inference.unnamed_model import UnnamedModel
from frameworks.core.errors import ModelNotFound, VersionNotFound
from frameworks.generation.types import GenerationSpec, Sampling
from frameworks.images.spec import ImageSpec
from frameworks.types import (
    MapType,
    ModelSpec,
    OptionalType,
    SequenceType,
    Task,
    TensorType,
    TextSpec,
    ValueSpec,
    ValueType,
)


def model(*inputs: ValueSpec, task: Task = "tensor", framework: str = "onnx") -> ModelSpec:
    """Return a model with these inputs and the outputs `y` and `z`."""
    text = (
        None
        if task in ("tensor", "generate")
        else TextSpec(max_tokens=16, labels=("a", "b") if task == "classify" else ())
    )
    outputs = (ValueSpec("y", TensorType("float32", None)), ValueSpec("z", TensorType("int64", (-1,))))
    return ModelSpec(framework, task, inputs, outputs, "cpu", "float32", 0, text)


def one(kind: ValueType, *, required: bool = True) -> ModelSpec:
    """Return a model with the one input `x`."""
    return model(ValueSpec("x", kind, required))


def photos(task: Task) -> ModelSpec:
    """Return a model that reads images of 4 x 4 pixels."""
    pixels = ValueSpec("pixel_values", TensorType("float32", (-1, 3, 4, 4)))
    labels = ("cat", "dog", "owl") if task == "classify" else ()
    size = 8 if task == "embed" else None
    return replace(
        model(pixels, task=task), text=None, image=ImageSpec("pixel_values", 4, 4, labels, embedding_size=size)
    )


GENERATION = GenerationSpec(
    max_context_tokens=512, vocabulary_size=100, has_chat_template=True, sampling=Sampling(temperature=0.7, top_k=20)
)
WRITER = replace(model(task="generate", framework="pytorch"), generation=GENERATION)
"""A model that generates text."""

SPECS: dict[str, ModelSpec] = {
    **{
        dtype: one(TensorType(dtype, None))
        for dtype in ("float32", "float64", "float16", "bfloat16", "int64", "uint64", "int8", "uint8", "bool", "string")
    },
    "matrix": one(TensorType("float32", (-1, 3))),
    "fixed": one(TensorType("int64", (2, 3))),
    "zero": one(TensorType("float32", (-1, 0))),
    "free": one(TensorType("float32", (-1, -1, 2))),
    "free-nml": one(TensorType("float32", (-1, -1, -1))),
    "mixed": model(
        ValueSpec("x", TensorType("float32", (-1, -1))),
        ValueSpec("s", TensorType("string", None)),
        ValueSpec("b", TensorType("bool", None), required=False),
    ),
    "sequence": one(SequenceType(TensorType("float32", None))),
    "sequences": one(SequenceType(SequenceType(TensorType("int64", None)))),
    "int-map": one(MapType("int64", TensorType("float32", None))),
    "string-map": one(MapType("string", TensorType("int64", None))),
    "maps": one(SequenceType(MapType("string", TensorType("string", None)))),
    "optional": one(OptionalType(TensorType("float32", (-1,))), required=False),
    "none": model(),
    "embed": model(ValueSpec("text", TensorType("string", (-1,))), task="embed", framework="pytorch"),
    "embed-onnx": model(ValueSpec("x", TensorType("int64", (-1, -1))), task="embed"),
    "classify": model(ValueSpec("text", TensorType("string", (-1,))), task="classify", framework="pytorch"),
    "photos": photos("classify"),
    "photo-vectors": photos("embed"),
    "photo-tensors": photos("tensor"),
    "generate": WRITER,
    "generate-plain": replace(WRITER, generation=replace(GENERATION, has_chat_template=False)),
}


def find_spec(name: str | UnnamedModel, version: str | None, read_timeout_ms: object = None) -> ModelSpec:
    """Return the spec of a model, as the pipeline does."""
    if isinstance(name, UnnamedModel):
        name = "generate"
    if name not in SPECS:
        raise ModelNotFound(name, SPECS)
    if version not in (None, "1"):
        raise VersionNotFound(name, version or "", ["1"])
    return SPECS[name]
