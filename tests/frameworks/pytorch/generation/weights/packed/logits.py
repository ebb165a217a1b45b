"""Logits of whole texts, by our steps and by transformers."""

from typing import Any

import torch

from frameworks.pytorch.generation.step.engine import GeneratingModel
from frameworks.scheduling.steps.sequence import Sequence, StepPart
from tests.frameworks.pytorch.generation.generating import GREEDY, request


def logits_of(model: Any, token_ids: list[int]) -> torch.Tensor:
    """Return the logits [tokens, vocabulary] of a model of transformers."""
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([token_ids])).logits[0]
    return logits


def own_logits(model: GeneratingModel, token_ids: list[int]) -> torch.Tensor:
    """Return the same of ours, token by token with the cache. At most 64 tokens."""
    assert model._parts is not None
    runner: Any = model._parts.runner
    rows = []
    with torch.inference_mode():
        for position in range(len(token_ids)):
            sequence = Sequence(request(0, token_ids[: position + 1], 1, GREEDY), 0.0)
            sequence.blocks = [0, 1]
            rows.append(runner.compute([StepPart(sequence, position, 1)]).float().clone())
    return torch.cat(rows)
