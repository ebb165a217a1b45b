"""A model with an encoder for queries and another one for documents."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from frameworks.core.errors import InvalidModel
from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.scheduling.merging.text_padding import texts_at
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import TEXT_OUTPUT, Array, Batch, ModelSpec, TextSpec, TokenBatch, Value

if TYPE_CHECKING:
    from frameworks.images.processor import ImageProcessor


class SidedModel:
    """One thread at a time calls `infer`."""

    image_processor: "ImageProcessor | None" = None

    def __init__(self, folder: Path, documents: EncoderModel, queries: EncoderModel) -> None:
        """Raises InvalidModel for two encoders whose vectors cannot be compared."""
        self._documents = documents
        self._queries = queries
        self.tokenizer: TextTokenizer | None = documents.tokenizer
        assert self.tokenizer is not None
        self.tokenizer.queries = queries.tokenizer
        for name in ("vectors", "embedding_size", "normalize"):
            one, other = (getattr(model.spec.text, name) for model in (documents, queries))
            if one != other or documents.spec.task != "embed" or queries.spec.task != "embed":
                raise InvalidModel(
                    f"{folder}: Router: expected vectors of one kind for queries and documents, "
                    f"got {name} {other} and {one}; this model is not served"
                )
        self.spec = self._joined()

    def infer(self, batch: Batch) -> dict[str, Value]:
        """As EncoderModel.infer. `are_queries` of the batch chooses the encoder of each text."""
        if not isinstance(batch, TokenBatch) or not any(batch.are_queries or ()):
            return self._documents.infer(batch)
        are_queries = np.asarray(batch.are_queries)
        if are_queries.all():
            return self._queries.infer(batch)
        rows: Array | None = None
        for model, at in ((self._documents, ~are_queries), (self._queries, are_queries)):
            positions = np.flatnonzero(at)
            part = model.infer(texts_at(batch, positions))[TEXT_OUTPUT]
            assert isinstance(part, np.ndarray)
            if rows is None:
                rows = np.empty((batch.rows, *part.shape[1:]), part.dtype)
            rows[positions] = part
        return {TEXT_OUTPUT: rows}

    def warm_up(self) -> None:
        """As EncoderModel.warm_up, of both encoders."""
        self._documents.warm_up()
        self._queries.warm_up()
        self.spec = self._joined()

    def on_idle(self) -> None:
        """As BatchModel.on_idle."""
        self._documents.on_idle()
        self._queries.on_idle()

    def close(self) -> None:
        """As BatchModel.close."""
        self._documents.close()
        self._queries.close()

    def _joined(self) -> ModelSpec:
        """Return the spec of documents, with the memory and the padding of both encoders."""
        spec, other = self._documents.spec, self._queries.spec
        assert isinstance(spec.text, TextSpec)
        assert isinstance(other.text, TextSpec)
        because = spec.text.unpadded_because or other.text.unpadded_because
        return replace(
            spec,
            memory_bytes=spec.memory_bytes + other.memory_bytes,
            text=replace(spec.text, has_sides=True, unpadded_because=because, pads=spec.text.pads or other.text.pads),
        )
