"""Write MiniLM with random weights: the kit carries its tokenizer and its configuration only."""

import shutil
from pathlib import Path


def write_minilm(files: Path, folder: Path) -> Path:
    """Copy the files and write weights from a fixed seed; return the folder."""
    import torch
    import transformers

    shutil.copytree(files, folder, dirs_exist_ok=True)
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    model = transformers.BertModel(transformers.BertConfig.from_pretrained(folder))
    model.save_pretrained(folder)
    return folder
