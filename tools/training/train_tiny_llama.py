"""Train the first stage of ``tiny-llama``: ``python -m tools.training.train_tiny_llama --out FOLDER``.

Data: English sentences from the documentation of Python (prose.py; PSF licence), and simple dialogues made from them
(dialogues.py). One source in twenty, chosen by the hash of its name, is held out. Tokenizer: byte-level BPE. Model: a
Llama with grouped-query attention and tied embeddings. Training: bfloat16 autocast, Muon for the layers' matrices and
AdamW for the rest. The weights are rounded to float16 before the evaluation. Loss on the held-out text: 3.856 nats per
token. Requires torch >= 2.9. The second stage, ``train_tiny_llama_tools``, writes the committed files.
"""

import argparse
import platform
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from app.embedded.copy_tiny_llama import NAME
from tools.training import dialogues
from tools.training.prose import Document, documents
from tools.training.tiny_llama_text import Batch, batches, rows_of, text_of, train_tokenizer

SEED = 0
HELD_OUT_ONE_IN = 20
WARM_UP_SHARE = 0.05
LAST_LEARNING_RATE_SHARE = 0.02
REPORT_EVERY_STEPS = 50

README = """\
# {name}

A Llama of {parameters} parameters (weights in float16), trained in {minutes:.0f} minutes of a CPU core by
`python -m tools.training.train_tiny_llama`. It writes sentences that look like Python's documentation, answers
messages in the same style, and knows nothing: it is here to try the server with and to test it.

- Text: the documentation that comes with Python {python}: the topics of the language reference (`pydoc_data.topics`),
  docstrings and comments of the standard library, docstrings of what is built in; {documents} sources. Simple dialogues
  were made from the same text.
- Loss on sources that were held out: {loss:.3f} nats a token after the first stage.
- Licence: the text is Copyright (c) 2001 Python Software Foundation, All Rights Reserved, under the PSF License
  Version 2 (https://docs.python.org/3/license.html); these files, being made from it, are under the same licence.
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Sizes of the model and of its training."""

    vocabulary: int = 2048
    context: int = 512
    hidden_size: int = 192
    feed_forward_size: int = 512
    layers: int = 6
    heads: int = 6
    key_value_heads: int = 2
    steps: int = 1200
    rows_per_step: int = 8
    matrix_learning_rate: float = 1e-2
    learning_rate: float = 4e-3
    max_loss: float = 4.0
    """Maximum loss on the held-out text, in nats per token: a worse model is not written."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, write the folder and print its size and loss."""
    parser = argparse.ArgumentParser(prog="python -m tools.training.train_tiny_llama", description="Train tiny-llama.")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    out: Path = parser.parse_args(arguments).out
    make(out, Recipe(), documents())


def make(out: Path, recipe: Recipe, texts: Sequence[Document]) -> None:
    """Train on ``texts`` by ``recipe`` and write the model's files into the folder ``out``.

    Raises: SystemExit, before any file is written, if the loss on the held-out documents exceeds the recipe's.
    """
    started = time.process_time()
    train, held_out = split(texts)
    tokenizer = train_tokenizer(train, recipe.vocabulary, recipe.context)
    model = new_model(recipe, tokenizer)
    fit(model, batches(train, tokenizer, recipe.context, recipe.rows_per_step, SEED), recipe)
    loss = loss_as_rounded(model, rows_of([text_of(x) for x in held_out], tokenizer, recipe.context))
    if not loss <= recipe.max_loss:
        raise SystemExit(
            f"expected a loss of at most {recipe.max_loss} on the held-out text, got {loss:.3f}; nothing written"
        )
    minutes = (time.process_time() - started) / 60
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(out)
    model.half().save_pretrained(out)
    readme = README.format(
        name=NAME,
        parameters=f"{model.num_parameters():,}",
        minutes=minutes,
        python=platform.python_version(),
        documents=len(texts),
        loss=loss,
    )
    (out / "README.md").write_text(readme, encoding="utf-8")
    size = sum(path.stat().st_size for path in out.iterdir())
    print(f"{out}: {size} bytes, loss {loss:.3f} nats per token on the held-out text, {minutes:.1f} CPU minutes")


def split(texts: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """Return (training documents, held-out documents), chosen by the name of the source."""
    train: list[Document] = []
    held_out: list[Document] = []
    for document in texts:
        is_held_out = zlib.crc32(document.source.encode()) % HELD_OUT_ONE_IN == 0
        (held_out if is_held_out else train).append(document)
    return train, held_out


def new_model(recipe: Recipe, tokenizer: Any) -> Any:
    """Return a transformers Llama with seeded random weights. Generation ends at the end of a text or of a turn."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    names = [dialogues.PAD, dialogues.BEGIN, dialogues.END_OF_TEXT, dialogues.END_OF_TURN]
    pad, begin, end_of_text, end_of_turn = tokenizer.convert_tokens_to_ids(names)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.feed_forward_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.key_value_heads,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=True,
        pad_token_id=pad,
        bos_token_id=begin,
        eos_token_id=end_of_text,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        pad_token_id=pad, bos_token_id=begin, eos_token_id=[end_of_text, end_of_turn]
    )
    return model


def fit(model: Any, data: Iterator[Batch], recipe: Recipe) -> None:
    """Train for the recipe's steps, each on one batch of ``data``, and print the progress."""
    embedding = model.get_input_embeddings().weight
    matrices = [x for x in model.parameters() if x.ndim == 2 and x is not embedding]
    vectors = [x for x in model.parameters() if x.ndim == 1]
    optimizers = (
        torch.optim.Muon(matrices, recipe.matrix_learning_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([embedding, *vectors], recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    )
    schedules = [torch.optim.lr_scheduler.LambdaLR(x, lambda step: _share_at(step, recipe.steps)) for x in optimizers]
    model.train()
    started = time.perf_counter()
    for step, batch in zip(range(1, recipe.steps + 1), data, strict=False):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        if step % REPORT_EVERY_STEPS == 0 or step == recipe.steps:
            seconds = time.perf_counter() - started
            print(f"step {step} of {recipe.steps}: loss {loss.item():.3f}, {seconds:.0f} s", flush=True)


def loss_of(model: Any, batch: Batch) -> Any:
    """Return the mean loss of the labels. Texts of a row whose positions begin at 0 do not see each other."""
    # With a cache, transformers would not look at the positions.
    return model(input_ids=batch.ids, labels=batch.labels, position_ids=batch.positions, use_cache=False).loss


def _share_at(step: int, steps: int) -> float:
    """Return the share of the maximum learning rate: linear warm-up, then linear decay."""
    warm_up = max(1, round(WARM_UP_SHARE * steps))
    if step < warm_up:
        return (step + 1) / warm_up
    return 1 - (1 - LAST_LEARNING_RATE_SHARE) * (step - warm_up) / max(1, steps - warm_up)


def loss_as_rounded(model: Any, rows: torch.Tensor) -> float:
    """Return the mean loss in nats over all tokens but each row's first, in float32 with weights rounded to float16."""
    rounded = model.half().float().eval()
    with torch.inference_mode():
        losses: list[float] = [rounded(input_ids=row[None], labels=row[None]).loss.item() for row in rows]
    return sum(losses) / len(losses)


if __name__ == "__main__":
    main()
