"""Define what models declare about images, and the request for images."""

from dataclasses import dataclass
from typing import Literal

PREPROCESSOR_FILE = "preprocessor_config.json"
"""Of transformers: how the images of a model are prepared."""


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """How a model reads images. `input_name`: the tensor that the pixels of each image become one row of; empty where
    an image becomes several tensors, of a size that depends on it.

    `height`, `width`: of that tensor, in pixels; 0 without one. `labels`: of a classifier, by index. `multi_label`:
    each label has a probability of its own. `normalize`: whether embeddings are L2-normalised by default.
    `embedding_size`: dimensions of an embedding; None for other tasks, and where the files do not define it.
    `output_name`: of the logits or the embeddings; empty for task `tensor`. `pooling`: `cls` for an output of hidden
    states, whose first one is the embedding. `gives_probabilities`: the output of a classifier is no logits.
    """

    input_name: str
    height: int
    width: int
    labels: tuple[str, ...] = ()
    multi_label: bool = False
    normalize: bool = True
    embedding_size: int | None = None
    output_name: str = ""
    pooling: Literal["none", "cls"] = "none"
    gives_probabilities: bool = False


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """Images for a model that declares an ImageSpec. `images`: files, in the order of the answer.

    `normalize`: None for the default of the model's files. `top_k`: how many labels; None: all. `dimensions`: truncate
    embeddings to this size; None: whole embeddings. `raw_scores`: the logits of labels instead of their probabilities.
    `output_names`: of a model of task `tensor`; None for every output. `vectors`: the kinds that the response of the
    protocol can hold.
    """

    images: list[bytes]
    normalize: bool | None = None
    top_k: int | None = None
    dimensions: int | None = None
    raw_scores: bool = False
    output_names: tuple[str, ...] | None = None
    vectors: tuple[Literal["dense", "multi"], ...] = ("dense",)
