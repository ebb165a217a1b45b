"""Teach ``tiny-llama`` to call functions: ``python -m tools.training.train_tiny_llama_tools --source FOLDER``.

FOLDER is what ``train_tiny_llama`` wrote. Data: generated dialogues (tool_dialogues.py) beside the texts and dialogues
of the first stage. Checked before anything is written: calls, answers and unwanted calls on held-out questions
(tool_scores.py), and the loss on the held-out text, all with weights rounded to float16.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.embedded.copy_tiny_llama import COMMITTED
from tools.training import dialogues
from tools.training.prose import Document, documents
from tools.training.tiny_llama_text import rows_of, text_of
from tools.training.tool_rows import mixed_batches
from tools.training.tool_scores import Scores, measured
from tools.training.train_tiny_llama import Recipe, fit, loss_as_rounded, split

SEED = 1

README = """\
- Second stage, {minutes:.0f} minutes: `python -m tools.training.train_tiny_llama_tools`, on generated dialogues
  with functions. On held-out questions {calls:.1%} of the calls and {answers:.1%} of the answers are right. The loss is
  {loss:.3f} nats a token after it.
"""


@dataclass(frozen=True, slots=True)
class ToolRecipe(Recipe):
    """Sizes of the second stage. Those of the model are not read: they are in its folder."""

    passes: tuple[int, ...] = (500, 450)
    """Steps of each pass. A pass begins with the full learning rate, other dialogues and weights rounded to float16."""
    rows_per_step: int = 1
    """Rows of texts as in the first stage."""
    tool_rows_per_step: int = 3
    matrix_learning_rate: float = 6e-3
    learning_rate: float = 2.4e-3
    questions: int = 220
    """Held-out questions of each sort."""
    min_calls: float = 0.95
    min_answers: float = 0.9
    max_unneeded: float = 0.02
    max_unwanted: float = 0.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, write the folder and print its scores."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.training.train_tiny_llama_tools", description="Teach tiny-llama to call functions."
    )
    parser.add_argument("--source", type=Path, required=True, help="the folder that train_tiny_llama wrote")
    parser.add_argument("--out", type=Path, default=COMMITTED, help="the folder to write")
    options = parser.parse_args(arguments)
    make(options.out, options.source, ToolRecipe(), documents())


def make(out: Path, source: Path, recipe: ToolRecipe, texts: Sequence[Document]) -> None:
    """Train the model of `source` by `recipe` and write the files into the folder `out`.

    Raises: SystemExit, before any file is written, if the loss or a score misses the recipe's limit.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    started = time.process_time()
    train, held_out = split(texts)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.chat_template = dialogues.CHAT_TEMPLATE
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    context = model.config.max_position_embeddings
    for number, steps in enumerate(recipe.passes):
        rows = (recipe.rows_per_step, recipe.tool_rows_per_step)
        model.half().float()
        fit(model, mixed_batches(train, tokenizer, context, *rows, SEED + number), replace(recipe, steps=steps))
    loss = loss_as_rounded(model, rows_of([text_of(x) for x in held_out], tokenizer, context))
    asked_about = [entry for x in held_out for entry in x.entries if dialogues.can_be_asked_about(entry)]
    scores = measured(model, tokenizer, asked_about, recipe.questions, SEED)
    print(f"loss {loss:.3f} nats per token on the held-out text, {scores}", flush=True)
    _check(loss, scores, recipe)
    minutes = (time.process_time() - started) / 60
    readme = (source / "README.md").read_text(encoding="utf-8")
    out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (out / name).write_bytes((source / name).read_bytes())
    (out / "chat_template.jinja").write_text(dialogues.CHAT_TEMPLATE, encoding="utf-8")
    model.half().save_pretrained(out)
    stage = README.format(minutes=minutes, loss=loss, calls=scores.calls, answers=scores.answers)
    (out / "README.md").write_text(readme + stage, encoding="utf-8")
    print(f"{out}: {minutes:.1f} CPU minutes")


def _check(loss: float, scores: Scores, recipe: ToolRecipe) -> None:
    if not loss <= recipe.max_loss:
        raise SystemExit(
            f"expected a loss of at most {recipe.max_loss} on the held-out text, got {loss:.3f}; nothing written"
        )
    is_right = scores.calls >= recipe.min_calls and scores.answers >= recipe.min_answers
    if not is_right or scores.unneeded > recipe.max_unneeded or scores.unwanted > recipe.max_unwanted:
        raise SystemExit(
            f"expected at least {recipe.min_calls} right calls and {recipe.min_answers} right answers, at most "
            f"{recipe.max_unneeded} calls that are not needed and {recipe.max_unwanted} without functions, "
            f"got {scores}; nothing written"
        )


if __name__ == "__main__":
    main()
