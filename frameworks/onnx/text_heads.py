"""Find the output of a graph that a task reads, and the labels of its columns."""

from dataclasses import dataclass, replace
from pathlib import Path

from frameworks.core.errors import InvalidModel
from frameworks.text.config import TextConfig
from frameworks.text.sentence_modules.vector_modules import VectorModules
from frameworks.types import ModelSpec, Task, ValueSpec

TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
"""Inputs of a graph that texts fill."""


@dataclass(frozen=True, slots=True)
class TextHead:
    """The output that a task reads. `pools`: whether it has to be pooled over the tokens. `tokens`: the modules before
    the pooling, `vectors`: those after it; None where there are none.
    """

    task: Task
    output: str
    pools: bool
    vectors: VectorModules | None = None
    tokens: VectorModules | None = None


def find_head(spec: ModelSpec, config: TextConfig) -> TextHead | None:
    """Return the task that the graph serves on text, by its inputs and outputs and config.json's architecture."""
    required = {s.name for s in spec.inputs if s.required}
    if "input_ids" not in required or not required <= set(TOKEN_INPUTS):
        return None
    if len(spec.inputs_by_name["input_ids"].shape or (-1, -1)) != 2:
        return None
    ranks = {s.name: len(s.shape) for s in spec.outputs if s.shape is not None}
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
        if module is not None:
            raise _needs_pytorch(file, module.kind)
    if not head.pools:
        if not config.pools_prompt:
            raise InvalidModel(
                f"{file}: include_prompt: expected true, as the graph itself pools all tokens, got false; "
                "export the encoder without its pooling"
            )
        # The output sentence_embedding of a graph has the modules within it.
        return head
    size = max(0, (spec.outputs_by_name[head.output].shape or (0,))[-1])
    if config.token_modules:
        unserved = [module.kind for module in config.token_modules if module.kind not in ("Dense", "Normalize")]
        if unserved:
            raise _needs_pytorch(file, unserved[0])
        tokens = VectorModules(config.token_modules, size, allow_pickled)
        head, size = replace(head, tokens=tokens), tokens.size
    if config.vector_modules:
        size *= len((config.pooling or "mean").split("+"))
        head = replace(head, vectors=VectorModules(config.vector_modules, size, allow_pickled))
    return head


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
