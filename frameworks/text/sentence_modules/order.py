"""Divide the modules of a model: the encoder, those of tokens, the pooling, and those of vectors. Other orders fail."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frameworks.core.errors import InvalidModel
from frameworks.text.sentence_modules.modules import Module

SPARSE_TABLE = "SparseStaticEmbedding"
SPARSE_CODE = "SparseAutoEncoder"
ENCODERS = ("Transformer", "CLIPModel", "StaticEmbedding", "WordEmbeddings", "BoW", "MLMTransformer", SPARSE_TABLE)
"""First modules of the models that are served."""
# Those whose output is the vector of a text.
_POOLED = ("StaticEmbedding", "BoW", SPARSE_TABLE)
_OF_TOKENS = ("WeightedLayerPooling", "CNN", "LSTM", "WordWeights")
# Those that compute either, by the key module_input_name.
_OF_BOTH = ("Dense", "Normalize")
_OF_VECTORS = ("Dense", "LayerNorm", "Normalize")
SERVED = (*ENCODERS, *_OF_TOKENS, "Pooling", *_OF_VECTORS, "Dropout", "LogitScore", "SpladePooling", SPARSE_CODE)
"""Modules that are served in some order."""


@dataclass(frozen=True, slots=True)
class Order:
    """`tokens`: modules between the encoder and its pooling. `vectors`: those after it that compute an embedding,
    without a Normalize at the end, which `normalizes` is. `sparse`: the module whose vectors are sparse.
    """

    tokens: tuple[Module, ...] = ()
    pooling: Module | None = None
    vectors: tuple[Module, ...] = ()
    normalizes: bool = False
    sparse: Module | None = None


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
    for index, module in enumerate(modules):
        is_pooled = pooling is not None or kinds[0] in _POOLED
        is_known_place = (module.kind in ENCODERS) == (index == 0)
        if not is_known_place or not _follows(module, len(tokens) + 1 == index, is_pooled, bool(vectors)):
            raise InvalidModel(
                f"{folder / 'modules.json'}: expected Transformer or CLIPModel, then Pooling, then others, "
                f"got {', '.join(kinds)[:300]}; this order is not served"
            )
        if module.kind == "Pooling":
            pooling = module
        elif of_tokens(module):
            tokens.append(module)
        elif module.kind in _OF_VECTORS:
            vectors.append(module)
            if module.kind != "Normalize" and not is_pooled:
                raise _unserved(folder, f"{module.kind}: expected Pooling before it, got none")
    _check_neighbours(folder, kinds, tokens, pooling)
    sparse = _sparse_module(folder, modules, pooling)
    if sparse is not None:
        return Order(tuple(tokens), pooling, tuple(vectors), sparse=sparse)
    normalizes = bool(kinds) and kinds[-1] == "Normalize" and not of_tokens(modules[-1])
    while vectors and vectors[-1].kind == "Normalize":
        vectors.pop()
    return Order(tuple(tokens), pooling, tuple(vectors), normalizes)


def _check_neighbours(folder: Path, kinds: Sequence[str], tokens: Sequence[Module], pooling: Module | None) -> None:
    """Raise InvalidModel for a module without the one that it needs before or after it."""
    if tokens and pooling is None:
        raise _unserved(folder, f"{tokens[0].kind}: expected Pooling after it, got none")
    if "LSTM" in kinds and kinds[0] != "WordEmbeddings":
        raise _unserved(folder, f"LSTM: expected WordEmbeddings as the first module, got {kinds[0]}")


def _sparse_module(folder: Path, modules: Sequence[Module], pooling: Module | None) -> Module | None:
    """Return the module whose vectors are sparse; None where there is none. Raises InvalidModel."""
    kinds = [module.kind for module in modules]
    if SPARSE_TABLE in kinds and len(kinds) > 1:
        raise _unserved(folder, f"{SPARSE_TABLE}: expected no module after it, got {kinds[1]}")
    if SPARSE_CODE in kinds and (pooling is None or kinds[-1] != SPARSE_CODE or kinds.count(SPARSE_CODE) > 1):
        raise _unserved(folder, f"{SPARSE_CODE}: expected Pooling before it and nothing after it, got {kinds[-1]}")
    return modules[-1] if kinds and kinds[-1] in (SPARSE_TABLE, SPARSE_CODE) else None


def _follows(module: Module, is_next: bool, is_pooled: bool, has_vectors: bool) -> bool:
    """Return whether a module may stand behind those before it. `is_next`: all of them have states of tokens.

    Raises InvalidModel for one of tokens behind the pooling.
    """
    if of_tokens(module):
        if module.kind in _OF_BOTH and (is_pooled or has_vectors):
            raise InvalidModel(
                f"{module.config_file}: module_input_name: expected sentence_embedding behind the pooling, "
                "got token_embeddings; this order is not served"
            )
        return not is_pooled and not has_vectors
    return module.kind != "Pooling" or (is_next and not is_pooled)


def _unserved(folder: Path, reason: str) -> InvalidModel:
    return InvalidModel(f"{folder / 'modules.json'}: {reason}; this order is not served")
