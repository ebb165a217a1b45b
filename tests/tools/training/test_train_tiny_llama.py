"""Training of a tiny tiny-llama: it learns, it is deterministic, and a bad model is refused."""

import dataclasses
import math
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.embedded.copy_tiny_llama import FILES
from tools.training import dialogues
from tools.training.prose import Document, Entry
from tools.training.tiny_llama_text import batches, rows_of, text_of, train_tokenizer
from tools.training.train_tiny_llama import Recipe, make, split

pytestmark = pytest.mark.extended

SMALL = Recipe(
    vocabulary=320,
    context=32,
    hidden_size=16,
    feed_forward_size=32,
    layers=2,
    heads=2,
    key_value_heads=1,
    steps=30,
    rows_per_step=4,
    max_loss=math.inf,
)


@pytest.fixture(scope="module")
def texts() -> list[Document]:
    chance = random.Random(1)
    words = ("the", "list", "of", "strings", "that", "is", "returned", "if", "it", "was", "given", "to", "the", "call")
    return [
        Document(f"source {n}", (Entry(f"thing{n}", "topic", (" ".join(chance.choices(words, k=60)) + ".",)),))
        for n in range(100)
    ]


def test_make_writes_trained_model_that_loads(
    texts: list[Document], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, SMALL, texts)
    loss = float(capsys.readouterr().out.rpartition(", loss ")[2].split()[0])
    assert 0 < loss < 0.9 * math.log(SMALL.vocabulary)
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert model.dtype == torch.float16
    _, held_out = split(texts)
    rows = rows_of([text_of(x) for x in held_out], tokenizer, SMALL.context)
    with torch.inference_mode():
        assert model.float()(input_ids=rows, labels=rows).loss.item() == pytest.approx(loss, abs=0.02)


def test_make_is_deterministic(texts: list[Document], tmp_path: Path) -> None:
    recipe = dataclasses.replace(SMALL, steps=3)
    for name in ("one", "two"):
        make(tmp_path / name, recipe, texts)
    for file in set(FILES) - {"README.md"}:  # contains the training time
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@pytest.mark.parametrize("max_loss", [0.5, math.nan])
def test_make_refuses_high_loss(texts: list[Document], tmp_path: Path, max_loss: float) -> None:
    with pytest.raises(SystemExit, match="nothing written"):
        make(tmp_path / "out", dataclasses.replace(SMALL, steps=1, max_loss=max_loss), texts)
    assert not (tmp_path / "out").exists()


def test_batches_mix_documents_and_dialogues(texts: list[Document]) -> None:
    tokenizer = train_tokenizer(texts, 320, 4096)
    first, again, other = (
        next(batches(texts, tokenizer, context=4096, rows_per_batch=1, seed=seed)).ids for seed in (0, 0, 1)
    )
    assert first.shape == (1, 4096)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    _, *whole, _ = tokenizer.decode(first[0]).split(dialogues.BEGIN)  # the last one is incomplete
    spoken = {x for x in whole if x.startswith("<|")}
    assert {dialogues.BEGIN + x for x in set(whole) - spoken} < {text_of(document) for document in texts}
    assert len(whole) / 4 < len(spoken) < len(whole) * 3 / 4
    assert all(x.endswith(dialogues.END_OF_TURN + dialogues.END_OF_TEXT) for x in spoken)
