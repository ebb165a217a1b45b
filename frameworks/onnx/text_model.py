"""An ONNX encoder with its tokenizer: texts in, embeddings or logits out."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import structlog

from frameworks.core.errors import InvalidModel, OutOfMemory, RoundhouseError
from frameworks.core.files import description_folder
from frameworks.onnx.model import OnnxModel
from frameworks.onnx.positions import find_usable_positions
from frameworks.onnx.text_heads import TOKEN_INPUTS, TextHead, find_head, labels_of, with_modules
from frameworks.runtime import BatchModel
from frameworks.scheduling.merging.comparison import text_tolerance
from frameworks.scheduling.merging.text_padding import TRIAL_TEXTS, TextPadding, run_by_length
from frameworks.text.config import TextConfig, read_text_config
from frameworks.text.padding import PaddedTokens, pad
from frameworks.text.pickled_tensors import HEADS
from frameworks.text.pooling import pool
from frameworks.text.positions import position_trial_ids
from frameworks.text.sentence_modules.sparse_modules import dense_rows
from frameworks.text.sentence_modules.sparse_pooling import most_texts
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import (
    NUMPY_DTYPES,
    TEXT_OUTPUT,
    Array,
    Batch,
    TensorBatch,
    TensorType,
    TextSpec,
    TokenBatch,
    Value,
)

if TYPE_CHECKING:
    from frameworks.images.processor import ImageProcessor

log = structlog.get_logger(__name__)


def with_text(instances: list[OnnxModel], file: Path, allow_pickled: bool = False) -> list[BatchModel]:
    """Return the instances as a text model if there is a tokenizer.json and the graph reads tokens, else unchanged.

    `file`: of the graph. `allow_pickled`: read the weights of modules from pickles. Raises InvalidModel for broken text
    files.
    """
    folder = description_folder(file)
    if not (folder / "tokenizer.json").is_file():
        return [*instances]
    config = read_text_config(folder)
    if any((folder / name).is_file() for name in HEADS.values()):
        log.warning("only dense vectors are served", reason="a graph has no heads of other vectors")
    if config.answers is not None:
        raise InvalidModel(f"{folder}: LogitScore: expected a PyTorch model, got a graph; serve the original weights")
    head = find_head(instances[0].spec, config) if config.has_task else None
    if head is None:
        log.warning(
            "tokenizer.json found, but the graph is not a text encoder: serving tensors",
            folder=str(folder),
            architecture=config.architecture,
        )
        return [*instances]
    head = with_modules(head, instances[0].spec, config, file, allow_pickled)
    padding = TextPadding(config.pad_token_id)
    first = OnnxTextModel(instances[0], folder, config, head, padding)
    usable = first.usable_positions(file)
    if usable is not None and usable < config.max_tokens:
        config = replace(config, max_tokens=usable)
        first = OnnxTextModel(instances[0], folder, config, head, padding)
    return [first, *(OnnxTextModel(other, folder, config, head, padding, first.tokenizer) for other in instances[1:])]


class OnnxTextModel:
    """Takes texts as TokenBatch, and the graph's own inputs as TensorBatch. One thread at a time calls `infer`."""

    image_processor: "ImageProcessor | None" = None

    def __init__(
        self,
        model: OnnxModel,
        folder: Path,
        config: TextConfig,
        head: TextHead,
        padding: TextPadding,
        tokenizer: TextTokenizer | None = None,
    ) -> None:
        """`padding`: of all instances of the model. `tokenizer`: of another instance.

        Raises InvalidModel if the tokenizer cannot be read.
        """
        self._model = model
        self._padding = padding
        self._head = head
        if config.late is not None:
            raise InvalidModel(
                f"{folder}: expected a model with one vector for each text, got one of late interaction; serve its "
                "safetensors as a torch model"
            )
        self._pooling = config.pooling or "mean"
        ids_shape = model.spec.inputs_by_name["input_ids"].shape or (-1, -1)
        # A graph with fixed sizes runs only at them: texts are padded, batches are filled.
        self._fixed_rows, self._fixed_length = (size if size > 0 else None for size in ids_shape)
        if self._fixed_length:
            config = replace(config, max_tokens=min(config.max_tokens, self._fixed_length))
        self.tokenizer: TextTokenizer | None = tokenizer or TextTokenizer(folder, config)
        output = model.spec.outputs_by_name[head.output]
        labels = labels_of(config, output) if head.task == "classify" else ()
        embedding_size = 0 if head.task == "classify" else max(0, (output.shape or (0,))[-1])
        if head.tokens is not None:
            embedding_size = head.tokens.size
        if head.pools:
            embedding_size *= len(self._pooling.split("+"))
        if head.vectors is not None:
            embedding_size = head.vectors.size
        if head.sparse is not None:
            embedding_size = head.sparse_size
        self.spec = replace(
            model.spec,
            task=head.task,
            text=TextSpec(
                max_tokens=config.max_tokens,
                vectors="dense" if head.sparse is None else "sparse",
                normalize=config.normalize and head.sparse is None,
                labels=labels,
                # A single label's softmax would be 1, whatever its logit.
                multi_label=config.multi_label or len(labels) == 1,
                embedding_size=embedding_size or None,
                shorter_sizes=tuple(shorter for shorter in config.shorter_sizes if shorter < embedding_size),
                prompts=config.prompts,
                scores_are_logits=config.scores_are_logits,
                is_regression=config.is_regression,
                pooling=_pooling_of(head, self._pooling),
            ),
        )

    @property
    def is_sparse(self) -> bool:
        """Whether the vectors of texts are sparse."""
        return self._head.sparse is not None

    def infer(self, batch: Batch) -> dict[str, Value]:
        """As BatchModel.infer."""
        if isinstance(batch, TensorBatch):
            return self._model.infer(batch)
        assert isinstance(batch, TokenBatch)
        assert self.spec.text is not None
        if self.spec.text.unpadded_because is None:
            return {TEXT_OUTPUT: self._rows_of(batch)}
        return {TEXT_OUTPUT: run_by_length(batch, self._rows_of)}

    def warm_up(self) -> None:
        """Run an empty text and a longer one, which includes padding, and try whether padding changes a text.

        Raises InvalidModel, OutOfMemory.
        """
        assert self.tokenizer is not None
        try:
            self.infer(TokenBatch(self.tokenizer.tokenize(["", "warm up"], truncate=True)))
        except OutOfMemory:
            raise
        except Exception as error:
            raise InvalidModel(f"the graph does not run on text: {error}") from error

        self._try_padding(self.tokenizer)
        self._model.warm_up()
        raw = self._model.spec
        self.spec = replace(
            self.spec,
            batched_inputs=raw.batched_inputs,
            unbatched_because=raw.unbatched_because,
            unwarmed_because=raw.unwarmed_because,
            sequence=raw.sequence,
            graphs=raw.graphs,
            memory_bytes=raw.memory_bytes,
        )

    def on_idle(self) -> None:
        """As BatchModel.on_idle: sleeping threads of ONNX Runtime slow down nothing."""

    def close(self) -> None:
        self._model.close()

    def _try_padding(self, tokenizer: TextTokenizer) -> None:
        if self._fixed_length or self._fixed_rows == 1:
            # The padding of a text does not depend on those beside it.
            return
        token_ids = tokenizer.tokenize([*TRIAL_TEXTS], truncate=True)
        tolerance = text_tolerance(self._model.spec, self._model.rounds_activations)
        try:
            because = self._padding.reason_not_shared(token_ids, self._trial_rows, tolerance)
        except OutOfMemory:
            raise
        except RoundhouseError as error:
            because = f"a trial with a padded text failed: {error.public}"
        assert self.spec.text is not None
        self.spec = replace(self.spec, text=replace(self.spec.text, unpadded_because=because))
        if because is not None:
            log.warning("texts of different lengths are not batched together", reason=because)

    def _trial_rows(self, batch: TokenBatch) -> Array:
        """Return a row of numbers for each text, to compare two runs."""
        rows = self._rows_of(batch)
        return dense_rows(rows, self._head.sparse_size) if self.is_sparse else rows

    def _rows_of(self, batch: TokenBatch) -> Array:
        """Run as many texts at a time as the graph reads; return a row for each."""
        rows_per_run = self._fixed_rows or max(1, batch.rows)
        if self.is_sparse and not self._fixed_rows:
            longest = max(map(len, batch.token_ids), default=1)
            rows_per_run = min(rows_per_run, most_texts(longest, self._head.sparse_size))
        parts = [self._run(batch.part(start, rows_per_run)) for start in range(0, max(1, batch.rows), rows_per_run)]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _run(self, batch: TokenBatch) -> Array:
        tokens = self._padded(batch)
        output = self._model.run_graph({**self._feeds(tokens)}, (self._head.output,))[self._head.output]
        assert isinstance(output, np.ndarray)
        if self._head.tokens is not None:
            states = self._head.tokens(output.reshape(-1, output.shape[-1]))
            output = states.reshape(*output.shape[:2], -1)
        rows = pool(output, tokens.pooling_mask, self._pooling) if self._head.pools else output
        rows = rows[: batch.rows]
        if self._head.vectors is not None:
            rows = self._head.vectors(rows)
        if self._head.sparse is not None:
            return self._head.sparse(rows, tokens.pooling_mask[: batch.rows])
        return rows.astype(np.float32, copy=False)

    def usable_positions(self, file: Path) -> int | None:
        """Return the largest number of tokens that the graph has positions for; None where nothing bounds it."""
        assert self.tokenizer is not None
        token_ids = None if self._fixed_length else position_trial_ids(self.tokenizer, TRIAL_TEXTS)
        if token_ids is None:
            return None
        feeds = self._feeds(self._padded(TokenBatch([token_ids])))
        try:
            return find_usable_positions(file, feeds)
        except (InvalidModel, ValueError, IndexError, OSError) as error:
            # The warm-up names an error of the graph itself.
            log.debug("the positions of the graph are not known", file=file.name, reason=str(error))
            return None

    def graph_inputs(self, batch: TokenBatch) -> dict[str, Value]:
        """Return the graph's inputs for the first texts of a batch: as many as it takes in one run."""
        rows = self._fixed_rows or batch.rows
        return {**self._feeds(self._padded(batch.part(0, rows)))}

    def _padded(self, batch: TokenBatch) -> PaddedTokens:
        """Pad to the size that the graph needs."""
        missing: list[list[int]] = [[]] * ((self._fixed_rows or batch.rows) - batch.rows)
        unpooled = None if batch.unpooled is None else batch.unpooled + [0] * len(missing)
        return pad(
            batch.token_ids + missing,
            self._padding.pad_token_id or 0,
            self._fixed_length or 0,
            token_type_ids=batch.token_type_ids,
            unpooled=unpooled,
        )

    def _feeds(self, tokens: PaddedTokens) -> dict[str, Array]:
        feeds: dict[str, Array] = {}
        for spec in self._model.spec.inputs:
            if spec.name not in TOKEN_INPUTS or not isinstance(spec.type, TensorType):
                continue
            match spec.name:
                case "input_ids":
                    values = tokens.input_ids
                case "attention_mask":
                    values = tokens.attention_mask
                case "token_type_ids":
                    types = tokens.token_type_ids
                    values = np.zeros_like(tokens.input_ids) if types is None else types
                case _:
                    values = np.broadcast_to(np.arange(tokens.input_ids.shape[1]), tokens.input_ids.shape)
            feeds[spec.name] = np.ascontiguousarray(values, dtype=NUMPY_DTYPES[spec.type.dtype])
        return feeds


def _pooling_of(head: TextHead, pooling: str) -> str:
    """Return how the states of tokens become a vector, as descriptions name it."""
    if head.output == "pooler_output":
        return "pooler"
    return "none" if head.sparse is not None and not head.pools else pooling
