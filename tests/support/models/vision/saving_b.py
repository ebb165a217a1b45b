"""Save a tiny random model with its tokenizer, processor and chat template."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from tests.support.models.text_files import write_json

_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def template(image: str, start: str = "") -> str:
    """Return a chat template. `image`: the text of a picture, `start`: that before the first message."""
    return start + _TEMPLATE.replace("IMAGE", image)


def save(
    folder: Path, config: Any, processor: Any, chat_template: str, prepare: Callable[[Any], None] | None = None
) -> Any:
    """Write the model of a config, drawn from a seed, and its processor; return the model in eval mode.

    `prepare`: sets weights that `draw` leaves as they are.
    """
    model = _save_model(folder, config, processor.tokenizer, prepare)
    processor.chat_template = chat_template
    processor.save_pretrained(folder)
    return model


def save_parts(folder: Path, config: Any, tokenizer: Any, chat_template: str, processor: dict[str, Any]) -> Any:
    """Write a model as `save` does. `processor`: the content of processor_config.json; its class needs torchvision."""
    model = _save_model(folder, config, tokenizer)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    write_json(folder / "processor_config.json", processor)
    return model


def _save_model(folder: Path, config: Any, tokenizer: Any, prepare: Callable[[Any], None] | None = None) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForMultimodalLM.from_config(config)
    draw(model)
    if prepare is not None:
        prepare(model)
    model.generation_config = transformers.GenerationConfig(
        do_sample=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.eval().save_pretrained(folder)
    return model


def draw(model: Any) -> None:
    """Draw the weights again: those of a usual size give all inputs one answer."""
    torch.manual_seed(0)
    words = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    # Large embeddings that are the head too would repeat the last token for ever.
    tied = head is not None and head.weight is words
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if tied and weight is words:
                weight.normal_(std=1 / weight.shape[1] ** 0.5)
            elif id(weight) in embeddings:
                weight.normal_(std=0.5)
            elif weight.dim() > 1:
                matrix = weight[0] if weight.dim() != 3 or "conv" in name else weight[0, 0]
                weight.normal_(std=1 / max(matrix.numel(), 1) ** 0.5)
            else:
                weight.add_(torch.randn_like(weight) * 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith(("bias", "alpha")):  # of routers and of scaled positions
                buffer.normal_(std=0.1)
