"""Find the output of a graph that a task reads, and the labels of its columns."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from frameworks.core.errors import InvalidModel
from frameworks.text.config import TextConfig
from frameworks.text.sentence_modules.order import SPARSE_CODE
from frameworks.text.sentence_modules.sparse_modules import SparseCode, sparse_rows
from frameworks.text.sentence_modules.vector_modules import VectorModules
from frameworks.types import Array, ModelSpec, Task, ValueSpec

TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
"""Inputs of a graph that texts fill."""


@dataclass(frozen=True, slots=True)
class TextHead:
    """The output that a task reads. `pools`: whether it has to be pooled over the tokens. `tokens`: the modules before
    the pooling, `vectors`: those after it; None where there are none. `sparse`: from the rows of the output and the
    mask [texts, tokens] to an object array [texts] of (indices, values); None: the vectors are dense. `sparse_size`:
    number of their dimensions.
    """

    task: Task
    output: str
    pools: bool
    vectors: VectorModules | None = None
    tokens: VectorModules | None = None
    sparse: Callable[[Array, Array], Array] | None = None
    sparse_size: int = 0


def find_head(spec: ModelSpec, config: TextConfig) -> TextHead | None:
    """Return the task that the graph serves on text, by its inputs and outputs and config.json's architecture."""
    required = {s.name for s in spec.inputs if s.required}
    if "input_ids" not in required or not required <= set(TOKEN_INPUTS):
        return None
    if len(spec.inputs_by_name["input_ids"].shape or (-1, -1)) != 2:
        return None
    ranks = {s.name: len(s.shape) for s in spec.outputs if s.shape is not None}
    if config.sparse is not None:
        return TextHead("embed", "logits", pools=False) if ranks.get("logits") == 3 else None
    if config.classifies or (ranks.get("logits") == 2 and 3 not in ranks.values()):
        named = ["logits"] if "logits" in ranks else list(ranks)
        logits = next((name for name in named if ranks[name] == 2), None)
        return TextHead("classify", logits, pools=False) if logits else None
    # text_embeds: of CLIP's tower of texts, in the space of its images.
    for name in ("sentence_embedding", "text_embeds"):
        if ranks.get(name) == 2:
            return TextHead("embed", name, pools=False)
    # Without sentence-transformers files BERT's own pooler defines a text's vector.
    if config.pooling is None and ranks.get("pooler_output") == 2:
        return TextHead("embed", "pooler_output", pools=False)
    # Logits of rank 3 are a language model's scores over its vocabulary, not an embedding.
    hidden = [n for n in ("last_hidden_state", "token_embeddings") if ranks.get(n) == 3]
    hidden += [n for n, rank in ranks.items() if rank == 3 and "logits" not in n]
    return TextHead("embed", hidden[0], pools=True) if hidden else None


def with_modules(head: TextHead, spec: ModelSpec, config: TextConfig, file: Path, allow_pickled: bool) -> TextHead:
    """Return the head with the modules around its pooling. `file`: of the graph.

    Raises InvalidModel for modules that read more than a graph gives.
    """
    for module in (config.words, config.sparse_module):
        if module is not None and module.kind != SPARSE_CODE:
            raise _needs_pytorch(file, module.kind)
    if config.sparse is not None:
        return _with_logits(head, spec, config, file)
    if not head.pools:
        return _pooled_by_graph(head, config, file)
    size = max(0, (spec.outputs_by_name[head.output].shape or (0,))[-1])
    if config.token_modules:
        unserved = [module.kind for module in config.token_modules if module.kind not in ("Dense", "Normalize")]
        if unserved:
            raise _needs_pytorch(file, unserved[0])
        tokens = VectorModules(config.token_modules, size, allow_pickled)
        head, size = replace(head, tokens=tokens), tokens.size
    size *= len((config.pooling or "mean").split("+"))
    if config.vector_modules:
        vectors = VectorModules(config.vector_modules, size, allow_pickled)
        head, size = replace(head, vectors=vectors), vectors.size
    if config.sparse_module is not None:
        code = SparseCode(config.sparse_module, size, config.max_active_dims, allow_pickled)
        head = replace(head, sparse=lambda rows, _: code(rows.astype(np.float32, copy=False)), sparse_size=code.size)
    return head


def _pooled_by_graph(head: TextHead, config: TextConfig, file: Path) -> TextHead:
    """Return the head: the output sentence_embedding of a graph has the modules within it. Raises InvalidModel."""
    if config.sparse_module is not None:
        raise _needs_pytorch(file, config.sparse_module.kind)
    if not config.pools_prompt:
        raise InvalidModel(
            f"{file}: include_prompt: expected true, as the graph itself pools all tokens, got false; "
            "export the encoder without its pooling"
        )
    return head


def _with_logits(head: TextHead, spec: ModelSpec, config: TextConfig, file: Path) -> TextHead:
    """Return the head of a masked language model whose logits are pooled to a sparse vector. Raises InvalidModel."""
    pooling = config.sparse
    assert pooling is not None
    size = (spec.outputs_by_name[head.output].shape or (-1,))[-1]
    if size <= 0:
        raise InvalidModel(
            f"{file}: {head.output}: expected an output that states the size of the vocabulary, got a symbolic one; "
            "export the graph with this axis fixed"
        )

    def rows_of(logits: Array, mask: Array) -> Array:
        return sparse_rows(pooling.weights_of(logits, mask), config.max_active_dims)

    return replace(head, sparse=rows_of, sparse_size=size)


def _needs_pytorch(file: Path, kind: str) -> InvalidModel:
    return InvalidModel(
        f"{file}: {kind}: expected a PyTorch model, got a graph; serve the original weights with PyTorch"
    )


def labels_of(config: TextConfig, output: ValueSpec) -> tuple[str, ...]:
    """Return config.json's labels, or LABEL_0, LABEL_1, … if the graph has another number of them."""
    columns = (output.shape or (-1, -1))[-1]
    if columns in (-1, len(config.labels)):
        return config.labels
    return tuple(f"LABEL_{i}" for i in range(columns))
