"""Divide the modules of a model: the encoder, those of tokens, the pooling, and those of vectors. Other orders fail."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frameworks.core.errors import InvalidModel
from frameworks.text.sentence_modules.modules import Module

ENCODERS = ("Transformer", "CLIPModel", "StaticEmbedding", "MLMTransformer")
"""First modules of the models that are served."""
# Those whose output is the vector of a text.
_POOLED = ("StaticEmbedding",)
_OF_TOKENS = ("WeightedLayerPooling", "CNN")
# Those that compute either, by the key module_input_name.
_OF_BOTH = ("Dense", "Normalize")
_OF_VECTORS = ("Dense", "LayerNorm", "Normalize")
_WITHOUT_VECTOR = ("Normalize",)
SERVED = (*ENCODERS, *_OF_TOKENS, "Pooling", *_OF_VECTORS, "Dropout", "LogitScore", "SpladePooling")
"""Modules that are served in some order."""


@dataclass(frozen=True, slots=True)
class Order:
    """`tokens`: modules between the encoder and its pooling. `vectors`: those after it that compute an embedding,
    without a Normalize at the end, which `normalizes` is.
    """

    tokens: tuple[Module, ...] = ()
    pooling: Module | None = None
    vectors: tuple[Module, ...] = ()
    normalizes: bool = False


def of_tokens(module: Module) -> bool:
    """Return whether a module computes the states of tokens."""
    reads_tokens = module.config.get("module_input_name") == "token_embeddings"
    return module.kind in _OF_TOKENS or (module.kind in _OF_BOTH and reads_tokens)


def read_order(folder: Path, modules: Sequence[Module]) -> Order:
    """Return the modules of a model by what they compute. `modules`: of `modules.json`, without Dropout.

    Raises InvalidModel unless an encoder, modules of tokens, at most one pooling and modules of its vector follow each
    other.
    """
    kinds = [module.kind for module in modules]
    tokens: list[Module] = []
    vectors: list[Module] = []
    pooling = None
    is_pooled = bool(kinds) and kinds[0] in _POOLED
    for index, module in enumerate(modules):
        kind = module.kind
        is_late = is_pooled or bool(vectors)
        if of_tokens(module) and is_late and kind in _OF_BOTH:
            raise InvalidModel(
                f"{module.config_file}: module_input_name: expected sentence_embedding behind the pooling, "
                "got token_embeddings; this order is not served"
            )
        is_misplaced = is_late if of_tokens(module) else kind == "Pooling" and (is_late or index != 1 + len(tokens))
        if (kind in ENCODERS) != (index == 0) or is_misplaced:
            raise InvalidModel(
                f"{folder / 'modules.json'}: expected Transformer or CLIPModel, then Pooling, then others, "
                f"got {', '.join(kinds)[:300]}; this order is not served"
            )
        if kind == "Pooling":
            pooling, is_pooled = module, True
        elif of_tokens(module):
            tokens.append(module)
        elif kind in _OF_VECTORS:
            vectors.append(module)
        if kind in _OF_VECTORS and kind not in _WITHOUT_VECTOR and not of_tokens(module) and not is_pooled:
            raise InvalidModel(
                f"{folder / 'modules.json'}: {kind}: expected Pooling before it, got none; this order is not served"
            )
    if tokens and pooling is None:
        kind = tokens[0].kind
        raise InvalidModel(
            f"{folder / 'modules.json'}: {kind}: expected Pooling after it, got none; this order is not served"
        )
    normalizes = bool(kinds) and kinds[-1] == "Normalize" and not of_tokens(modules[-1])
    while vectors and vectors[-1].kind == "Normalize":
        vectors.pop()
    return Order(tuple(tokens), pooling, tuple(vectors), normalizes)
