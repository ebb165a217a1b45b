"""An encoder or decoder of transformers with its tokenizer: texts in, embeddings or logits out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog
import torch

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.pytorch.device.pinned import pinned_arrays
from frameworks.pytorch.device_errors import RUN_ERRORS
from frameworks.pytorch.device_model import DeviceModel
from frameworks.pytorch.encoders.token_modules import TokenModules, TokenStates
from frameworks.scheduling.merging.comparison import text_tolerance
from frameworks.scheduling.merging.text_padding import TRIAL_TEXTS, TextPadding, run_by_length
from frameworks.text.padding import PaddedTokens, pad
from frameworks.text.sentence_modules.vector_modules import VectorModules
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import TEXT_OUTPUT, Array, Batch, ModelSpec, TokenBatch, Value
from memory.tensor_pool import TensorPool

if TYPE_CHECKING:
    from frameworks.images.processor import ImageProcessor
    from frameworks.pytorch.encoders.packed_texts import PackedTexts

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TextHead:
    """How the model's output becomes one row per text.

    `pooling`: modes joined by "+"; `pooler` is the model's own pooler's output, `logits` a classifier's. `tokens`: the
    modules before the pooling, `vectors`: those after it; None where there are none.
    """

    pooling: str
    vectors: VectorModules | None = None
    tokens: TokenModules | None = None


class EncoderModel(DeviceModel):
    """One thread at a time calls `infer`."""

    image_processor: "ImageProcessor | None" = None
    packed: "PackedTexts | None" = None
    """The runs of all instances without padding; None on other devices than CUDA."""

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: TextTokenizer,
        spec: ModelSpec,
        head: TextHead,
        padding: TextPadding,
        intra_op_threads: int,
        pool: TensorPool | None = None,
    ) -> None:
        """`padding`: of all instances of the model. `intra_op_threads`: CPU threads of one run. `pool`: of the pinned
        memory through which tokens reach a GPU.
        """
        super().__init__(model, torch.device(spec.device), intra_op_threads, pool)
        self._pooling = head.pooling
        self._padding = padding
        self._vectors = head.vectors
        self._tokens = head.tokens
        self._reads_token_types = "token_type_ids" in signature(model.forward).parameters
        self.tokenizer: TextTokenizer | None = tokenizer
        self.spec = spec

    def infer(self, batch: Batch) -> dict[str, Value]:
        """As BatchModel.infer; takes a TokenBatch, returns float32 [texts, size or labels] under TEXT_OUTPUT."""
        if not isinstance(batch, TokenBatch):
            raise InvalidInput("inputs", "expected text for this model, got tensors; send the field text")

        def run(model: torch.nn.Module) -> dict[str, Value]:
            return {TEXT_OUTPUT: self._rows_of(model, batch)}

        return self._run_on_device(run, lambda: _described(batch))

    def warm_up(self) -> None:
        """Run an empty text and a longer one, which includes padding, and try whether padding changes a text.

        Raises InvalidModel.
        """
        assert self.tokenizer is not None
        try:
            self.infer(TokenBatch(self.tokenizer.tokenize(["", "warm up"], truncate=True)))
            trial = self.tokenizer.tokenize([*TRIAL_TEXTS], truncate=True)
            if self.packed is not None:
                self._try_without_padding(self.packed, trial)
            because = self._reason_not_padded(trial)
        except RUN_ERRORS as error:
            raise InvalidModel(f"the model does not run on text: {error}") from error

        assert self.spec.text is not None
        self.spec = replace(self.spec, text=replace(self.spec.text, unpadded_because=because))
        if because is not None:
            log.warning("texts of different lengths are not batched together", reason=because)

    def close(self) -> None:
        """As BatchModel.close."""
        super().close()
        self._tokens = self.packed = None

    def _try_without_padding(self, packed: "PackedTexts", token_ids: list[list[int]]) -> None:
        """Let the runs of all instances be without padding where the texts get the same rows."""
        if self._padding.pad_token_id is not None:
            packed.try_out(token_ids, self._padding.pad_token_id, self._trial_rows, text_tolerance(self.spec))
        assert self.spec.text is not None
        self.spec = replace(
            self.spec,
            graphs=packed.graphs,
            memory_bytes=self.spec.memory_bytes + packed.size_bytes,
            text=replace(self.spec.text, packs=packed.is_used),
        )

    def _reason_not_padded(self, token_ids: list[list[int]]) -> str | None:
        if self._padding.pad_token_id is None:
            return "the model has no padding token; each text runs alone"
        return self._padding.reason_not_shared(token_ids, self._trial_rows, text_tolerance(self.spec))

    def _trial_rows(self, batch: TokenBatch) -> Array:
        """Run texts together, whatever earlier trials found; return what is compared."""
        rows = self._run_on_device(lambda model: {TEXT_OUTPUT: self._run(model, batch)}, lambda: _described(batch))[
            TEXT_OUTPUT
        ]
        assert isinstance(rows, np.ndarray)
        return self._trial_row(rows)

    def _trial_row(self, rows: Array) -> Array:
        """Return a row of numbers for each text, to compare two runs."""
        return rows

    def _rows_of(self, model: torch.nn.Module, batch: TokenBatch) -> Array:
        if self._padding.pad_token_id is None and batch.rows > 1:
            return np.concatenate([self._run(model, batch.part(at, 1)) for at in range(batch.rows)])
        assert self.spec.text is not None
        if self.spec.text.unpadded_because is None:
            return self._run(model, batch)
        return run_by_length(batch, partial(self._run, model))

    def _run(self, model: torch.nn.Module, batch: TokenBatch) -> Array:
        # The copies from pinned memory are complete when the result arrives.
        with pinned_arrays(self._pool) as empty:
            return self._computed(model, self._padded(batch, empty))

    def _padded(self, batch: TokenBatch, empty: Callable[..., Array]) -> PaddedTokens:
        types = batch.token_type_ids if self._reads_token_types else None
        pad_token_id = self._padding.pad_token_id or 0
        return pad(batch.token_ids, pad_token_id, empty=empty, token_type_ids=types, unpooled=batch.unpooled)

    def _computed(self, model: torch.nn.Module, tokens: PaddedTokens) -> Array:
        """Run a batch; return float32 [texts, size or labels]. Its tensors live in this frame and below."""
        with torch.inference_mode():
            return self._embedded(tokens, *self._encoded(model, tokens))

    def _encoded(self, model: torch.nn.Module, tokens: PaddedTokens) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """Run a batch; return the output of the model, the attention mask and the token ids, [texts, longest] each."""
        is_pinned = self._pool is not None
        mask = torch.from_numpy(tokens.attention_mask).to(self._device, non_blocking=is_pinned)
        input_ids = torch.from_numpy(tokens.input_ids).to(self._device, non_blocking=is_pinned)
        types = {}
        if tokens.token_type_ids is not None:
            own = torch.from_numpy(tokens.token_type_ids).to(self._device, non_blocking=is_pinned)
            types["token_type_ids"] = own
        if self.packed is None:
            return model(input_ids=input_ids, attention_mask=mask, **types), mask, input_ids
        with self.packed.running(tokens):
            return model(input_ids=input_ids, attention_mask=mask, **types), mask, input_ids

    def _embedded(self, tokens: PaddedTokens, output: Any, mask: torch.Tensor, input_ids: torch.Tensor) -> Array:
        """Return one row per text from what `_encoded` returns."""
        pooled = mask
        if tokens.unpooled is not None:
            pooled = torch.from_numpy(tokens.pooling_mask).to(self._device)
        if self._tokens is None:
            found = self._rows(output, pooled)
        else:
            layers = getattr(output, "hidden_states", None)
            states = self._tokens(TokenStates(output.last_hidden_state, mask, input_ids, layers))
            found = self._pooled(states.states, pooled, states.weight_sums)
        rows: Array = found.float().cpu().numpy()
        return rows if self._vectors is None else self._vectors(rows)

    def _rows(self, output: Any, mask: torch.Tensor) -> torch.Tensor:
        """Return one row per text from the model's output. `mask`: of the tokens to pool.

        `pooler` and `logits` are the model's own, the others those of sentence-transformers' Pooling.
        """
        if self._pooling == "logits":
            logits: torch.Tensor = output.logits
            return logits
        if self._pooling == "pooler":
            pooled: torch.Tensor = output.pooler_output
            return pooled
        return self._pooled(output.last_hidden_state, mask)

    def _pooled(
        self, hidden: torch.Tensor, mask: torch.Tensor, weight_sums: torch.Tensor | None = None
    ) -> torch.Tensor:
        pooled_by = [pool_by(mode, hidden, mask, weight_sums) for mode in self._pooling.split("+")]
        return pooled_by[0] if len(pooled_by) == 1 else torch.cat([rows.float() for rows in pooled_by], dim=1)


def pool_by(
    mode: str, hidden: torch.Tensor, mask: torch.Tensor, weight_sums: torch.Tensor | None = None
) -> torch.Tensor:
    """Pool the hidden states [texts, longest, size] by a mode, as `frameworks.text.pooling.pool`.

    `weight_sums`: divisors [texts] of the means, where the states have weights.
    """
    if mode == "cls":
        return hidden[torch.arange(len(hidden), device=mask.device), mask.argmax(dim=1)]
    if mode == "max":
        # The lowest number is beyond f16.
        return hidden.float().masked_fill(mask.unsqueeze(-1) == 0, -1e9).amax(dim=1)
    if mode == "lasttoken":
        last = (mask * torch.arange(mask.shape[1], device=mask.device)).argmax(dim=1)
        ends = hidden[torch.arange(len(last), device=mask.device), last]
        # The states of a text without tokens are undefined: its tokens attend to nothing.
        return ends.masked_fill(mask.sum(dim=1, keepdim=True) == 0, 0.0)
    assert mode in ("mean", "mean_sqrt_len_tokens", "weightedmean"), mode
    # The sum is float32 even if the states are f16: a sum of 512 of them would lose digits.
    weights = mask.unsqueeze(-1).float()
    if mode == "weightedmean":
        weights = weights * torch.arange(1, mask.shape[1] + 1, device=mask.device).view(1, -1, 1)
    total = (weights.sum(dim=1) if weight_sums is None else weight_sums.float().unsqueeze(-1)).clamp(min=1e-9)
    return (hidden.float() * weights).sum(dim=1) / (total.sqrt() if mode == "mean_sqrt_len_tokens" else total)


def _described(batch: TokenBatch) -> str:
    texts = f"{batch.rows} texts" if batch.rows > 1 else "one text"
    return f"a batch of {texts} of {max(map(len, batch.token_ids), default=1)} tokens"
