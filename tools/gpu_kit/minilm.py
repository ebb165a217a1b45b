"""Write encoders with random weights: the kit carries the tokenizer and the configuration of MiniLM only."""

import json
import shutil
from pathlib import Path
from typing import Any

BERT_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
"""Members of BERT-base's config.json that MiniLM has others of."""


def write_minilm(files: Path, folder: Path, **others: Any) -> Path:
    """Copy the files and write weights from a fixed seed; return the folder. `others`: members of config.json."""
    import torch
    import transformers

    shutil.copytree(files, folder, dirs_exist_ok=True)
    config_file = folder / "config.json"
    config_file.write_text(json.dumps(json.loads(config_file.read_text(encoding="utf-8")) | others), encoding="utf-8")
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    model = transformers.BertModel(transformers.BertConfig.from_pretrained(folder))
    model.save_pretrained(folder)
    return folder
