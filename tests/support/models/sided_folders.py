"""Folders of models with a Router: queries and documents have encoders of their own."""

from pathlib import Path
from typing import Any

import torch

from tests.support.models.sparse_folders import save_splade
from tests.support.models.torch_folders import HIDDEN_SIZE, MAX_TOKENS, save_embedder

PROMPTS = {"query": "query : ", "passage": "the mat . ", "other": "on "}


def random(*modules: torch.nn.Module) -> list[Any]:
    torch.manual_seed(3)
    for parameter in (each for module in modules for each in module.parameters()):
        torch.nn.init.normal_(parameter, std=0.3)
    return [*modules]


def save_dense(folder: Path) -> Any:
    """Save static embeddings of queries and a transformer of documents; return the SentenceTransformer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
    from tokenizers import Tokenizer

    path = save_embedder(folder / "encoder")
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    queries = random(StaticEmbedding(tokenizer, embedding_dim=12), Dense(12, HIDDEN_SIZE))
    documents = [Transformer(str(path), max_seq_length=MAX_TOKENS), Pooling(HIDDEN_SIZE, include_prompt=False)]
    modules = [Router.for_query_document(queries, documents), *random(Dense(HIDDEN_SIZE, 5)), Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu", prompts=PROMPTS)
    model.save(str(folder / "saved"), create_model_card=False)
    return SentenceTransformer(str(folder / "saved"), device="cpu", local_files_only=True)


def save_sparse(folder: Path) -> Any:
    """Save weights of tokens for queries and SPLADE for documents; return the SparseEncoder."""
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

    splade = SparseEncoder(str(save_splade(folder / "encoder")), device="cpu", local_files_only=True)
    tokenizer = splade[0].tokenizer
    splade[0].model.resize_token_embeddings(len(tokenizer))
    queries = random(SparseStaticEmbedding(tokenizer, torch.zeros(len(tokenizer))))
    model = SparseEncoder(modules=[Router.for_query_document(queries, [*splade])], device="cpu")
    model.save(str(folder / "saved"))
    return SparseEncoder(str(folder / "saved"), device="cpu", local_files_only=True)
