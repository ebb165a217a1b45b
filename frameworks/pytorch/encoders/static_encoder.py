"""Static embeddings, as of model2vec: the mean of a row for each token. No transformer runs, and nothing is padded."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import torch

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel
from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.text.sentence_modules.module_weights import read_weights
from frameworks.text.sentence_modules.modules import Module
from frameworks.types import Array, TokenBatch


def load_table(module: Module, device: Device, vocabulary_size: int, allow_pickled: bool) -> torch.nn.Module:
    """Return the rows of the tokens in float32. `vocabulary_size`: of the tokenizer. Raises InvalidModel.

    model2vec's `mapping` names the row of each token, and its `weights` scale the tokens.
    """
    tensors = read_weights(module, allow_pickled)
    rows = tensors.get("embedding.weight", tensors.get("embeddings"))
    if rows is None or rows.ndim != 2:
        raise InvalidModel(f"{module.folder}: expected a tensor embedding.weight or embeddings of two axes, got none")
    if "mapping" in tensors:
        rows = rows[tensors["mapping"].astype(np.int64)]
    if "weights" in tensors:
        rows = rows * tensors["weights"][:, None]
    if len(rows) < vocabulary_size:
        raise InvalidModel(
            f"{module.folder}: expected a row for each of {vocabulary_size} tokens, got {len(rows)}; "
            "check that the copy is complete"
        )
    table = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(np.ascontiguousarray(rows)), mode="mean")
    # The size of the vectors, where a model of transformers states it.
    table.config = SimpleNamespace(hidden_size=rows.shape[1])  # type: ignore[assignment]
    return table.eval().to(device.id)


class StaticEncoder(EncoderModel):
    """Its rows do not depend on the texts beside them: all texts share a batch."""

    def _run(self, model: torch.nn.Module, batch: TokenBatch) -> Array:
        lengths = np.fromiter(map(len, batch.token_ids), np.int64, len(batch.token_ids))
        token_ids = np.fromiter(chain.from_iterable(batch.token_ids), np.int64, int(lengths.sum()))
        starts = np.cumsum(lengths) - lengths
        with torch.inference_mode():
            offsets = torch.from_numpy(starts).to(self._device)
            rows: Array = model(torch.from_numpy(token_ids).to(self._device), offsets).float().cpu().numpy()
        return rows if self._vectors is None else self._vectors(rows)
