"""Tiny folders of sparse embeddings, as SparseEncoder saves them."""

from pathlib import Path

from tests.support.models.text_files import write_json
from tests.support.models.torch_folders import save_masked_model


def save_splade(folder: Path, strategy: str = "max", activation: str = "relu", kind: str = "MLMTransformer") -> Path:
    """A masked language model with SpladePooling. `kind`: of the first module, MLMTransformer or Transformer."""
    save_masked_model(folder)
    write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder", "prompts": {}})
    task = {} if kind == "MLMTransformer" else {"transformer_task": "fill-mask"}
    text = {"method": "forward", "method_output_name": "logits"}
    own = {"modality_config": {"text": text}, "module_output_name": "token_embeddings"} if task else {}
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 30, **task, **own})
    first = "sparse_encoder.modules.mlm_transformer" if kind == "MLMTransformer" else "base.modules.transformer"
    kinds = ((f"{first}.{kind}", ""), ("sparse_encoder.modules.splade_pooling.SpladePooling", "1_SpladePooling"))
    modules = [
        {"idx": i, "name": str(i), "type": f"sentence_transformers.{each}", "path": path}
        for i, (each, path) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    settings = {"pooling_strategy": strategy, "activation_function": activation, "embedding_dimension": None}
    write_json(folder / "1_SpladePooling" / "config.json", settings)
    return folder
