"""Models of whole words: a row for each word (WordEmbeddings), or the weights of the words of a text (BoW)."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from frameworks.core.devices import Device
from frameworks.core.errors import InvalidModel
from frameworks.pytorch.encoders.encoder import EncoderModel
from frameworks.pytorch.loader import DTYPES
from frameworks.text.sentence_modules.module_weights import read_weights
from frameworks.text.sentence_modules.modules import Module
from frameworks.text.sentence_modules.vector_modules import LARGEST_VECTOR
from frameworks.text.words.vocabulary import word_weights
from frameworks.types import Array, TokenBatch

_TABLE = "emb_layer.weight"


class WordTable(torch.nn.Module):
    """The rows of the words, as the states of their tokens."""

    def __init__(self, rows: torch.Tensor) -> None:
        """`rows`: [words, size]."""
        super().__init__()
        self.table = torch.nn.Embedding(rows.shape[0], rows.shape[1], _weight=rows)
        self.table.requires_grad_(False)
        # The size of the states, where a model of transformers states it.
        self.config: Any = SimpleNamespace(hidden_size=rows.shape[1])

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        """Return the states [texts, longest, size] of token ids [texts, longest]."""
        return SimpleNamespace(last_hidden_state=self.table(input_ids))


class WordBag(torch.nn.Module):
    """The weights of the words. A text has one number for each word of the vocabulary."""

    def __init__(self, weights: Array, adds_up: bool) -> None:
        """`weights`: float32 [words]. `adds_up`: a word counts each time."""
        super().__init__()
        self.weights = weights
        self.adds_up = adds_up
        self.config: Any = SimpleNamespace(hidden_size=len(weights))

    def forward(self, token_ids: list[list[int]]) -> Array:
        """Return float32 [texts, words]."""
        rows = np.zeros((len(token_ids), len(self.weights)), np.float32)
        for row, ids in zip(rows, token_ids, strict=True):
            at = np.asarray(ids, np.int64)
            if self.adds_up:
                np.add.at(row, at, self.weights[at])
            else:
                row[at] = self.weights[at]
        return rows


class WordBagModel(EncoderModel):
    """Its rows do not depend on the texts beside them: all texts share a batch."""

    def _run(self, model: torch.nn.Module, batch: TokenBatch) -> Array:
        rows: Array = model(batch.token_ids)
        return rows if self._vectors is None else self._vectors(rows)


def load_words(
    module: Module, device: Device, dtype: str, vocabulary_size: int, allow_pickled: bool
) -> torch.nn.Module:
    """Return the model of a first module. `vocabulary_size`: of the tokenizer. Raises InvalidModel."""
    if module.kind == "BoW":
        weights = word_weights(module)
        if len(weights) > LARGEST_VECTOR:
            raise InvalidModel(
                f"{module.config_file}: vocab: expected at most {LARGEST_VECTOR} words, the size of the vectors, "
                f"got {len(weights)}; serve a smaller model"
            )
        adds_up = module.config.get("cumulative_term_frequency", True)
        if not isinstance(adds_up, bool):
            raise InvalidModel(
                f"{module.config_file}: cumulative_term_frequency: expected true or false, got {str(adds_up)[:100]}; "
                "correct it"
            )
        return WordBag(weights, adds_up).eval()
    rows = read_weights(module, allow_pickled).get(_TABLE)
    if rows is None or rows.ndim != 2 or not 0 < rows.shape[1] <= LARGEST_VECTOR or len(rows) < vocabulary_size:
        got = "none" if rows is None else str([*rows.shape])
        raise InvalidModel(
            f"{module.folder}: {_TABLE}: expected a row for each of {vocabulary_size} words, got {got}; "
            "check that the copy is complete"
        )
    return WordTable(torch.from_numpy(rows)).eval().to(device.id, DTYPES[dtype])
