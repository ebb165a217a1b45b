"""Score pairs of texts by a language model: the logit of "yes" minus that of "no"."""

from inspect import signature
from typing import Any

import torch
from transformers.modeling_outputs import SequenceClassifierOutput

from frameworks.core.errors import InvalidModel


class AnswerScorer(torch.nn.Module):
    """A causal language model as a cross-encoder with one label.

    The logit is that of the positive answer minus that of the negative one, as in sentence-transformers' LogitScore.
    """

    def __init__(self, model: Any, positive_id: int, negative_id: int | None) -> None:
        """`model`: an AutoModelForCausalLM. `negative_id`: None to subtract nothing. Raises InvalidModel."""
        super().__init__()
        parameters = signature(model.forward).parameters
        if "logits_to_keep" not in parameters:
            # All logits of a batch of long texts would take gigabytes.
            raise InvalidModel(
                f"expected a language model that can compute the logits of the last token alone, got "
                f"{type(model).__name__}; serve one that has a classification head"
            )
        vocabulary_size = int(model.get_output_embeddings().weight.shape[0])
        for token_id in (positive_id, negative_id):
            if token_id is not None and token_id >= vocabulary_size:
                raise InvalidModel(f"expected answers among the {vocabulary_size} tokens of the model, got {token_id}")
        self._takes_positions = "position_ids" in parameters
        self._positive_id = positive_id
        self._negative_id = negative_id
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SequenceClassifierOutput:
        """Take int64 [texts, longest], padded on the right; return float32 logits [texts, 1]."""
        longest = input_ids.shape[1]
        # With the padding on the left the last tokens of all texts are in one column, and their logits are computed
        # alone. The positions are still those of each text.
        num_padding = longest - attention_mask.sum(dim=1, keepdim=True)
        positions = torch.arange(longest, device=input_ids.device) - num_padding
        position_ids = positions.clamp(min=0)
        options = {"position_ids": position_ids} if self._takes_positions else {}
        output = self.model(
            input_ids=input_ids.gather(1, position_ids),
            attention_mask=(positions >= 0).to(attention_mask.dtype),
            use_cache=False,
            logits_to_keep=1,
            **options,
        )
        logits: torch.Tensor = output.logits[:, -1].float()
        score = logits[:, self._positive_id]
        if self._negative_id is not None:
            score = score - logits[:, self._negative_id]
        return SequenceClassifierOutput(logits=score.unsqueeze(1))
