"""Provide both searches in rows, and a tokenizer with learnt merges."""

import inspect
import json
import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from frameworks.pytorch.generation.sampling import top_k as searches
from frameworks.pytorch.generation.sampling.token_masks import TokenMasks
from tests.frameworks.pytorch.generation.sampling_cases import ENDS, SIZE

END_TOKENS = ("</s>", "<|end|>")


@pytest.fixture(params=["numpy", "torch"])
def _searched_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy searches on a CPU, torch elsewhere; this selects torch on the CPU too."""
    if request.param == "torch":
        monkeypatch.setattr(searches, "_uses_numpy", lambda _: False)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Return a byte-level BPE of Python source: <s> is 0, the END_TOKENS are 1 and 2."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<s>", *END_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [inspect.getsource(module) for module in (json, random)]
    texts.append('{"name": "é", "list": [1, 2.5, true, null], "a": {"b": "c"}}' * 20)
    made.train_from_iterator(texts, trainer)
    return made


@pytest.fixture(scope="session")
def masks(tokenizer: Tokenizer) -> TokenMasks:
    return TokenMasks(tokenizer, SIZE, ENDS)
