"""Train the ``names`` model and write its folder: ``python -m tools.training.train_names``, after ``make models``.

Data: sentences of `name_sentences`, and sentences without names of Python's documentation. One name of seven is held
out, with templates. Model: ``RoFormerForTokenClassification``, three layers of 96 with rotary positions. Its word
vectors of 44 numbers begin as those of ``minilm`` in fewer dimensions, and stay. Weights are float16. F1 of the
committed folder: 0.915 on held-out sentences, 0.79 on the 24 sentences of its test, written by hand. Training takes
about five minutes of one core.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from app.embedded.copy_minilm import NAME as MINILM
from app.embedded.copy_names import COMMITTED
from tools.training import prose
from tools.training.name_sentences import Sentence, Writer, read_words, split_words
from tools.training.name_vocabulary import (
    KINDS,
    Source,
    common_words,
    more_names,
    new_tokenizer,
    read_source,
    scores_of,
    vectors_of,
    vocabulary_of,
)

LABELS = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
VECTOR, WIDTH, LAYERS, HEADS, INNER, MAX_TOKENS = 44, 96, 3, 4, 224, 256
STEPS, BATCH_SIZE, LEARNING_RATE = 2000, 48, 2e-3
PROSE_SHARE, MAX_PROSE = 0.12, 200
NUM_WORDS = 4000
"""How many common words the sentences use."""
NUM_HELD_OUT, SEED, HELD_OUT_SEED = 600, 0, 1_000_003
MIN_F1 = 0.85
"""Minimum F1 on the held-out sentences: a worse model is not written."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, write the folder and print the F1 of what was written."""
    parser = argparse.ArgumentParser(prog="python -m tools.training.train_names", description="Train the names model.")
    parser.add_argument("--out", type=Path, default=COMMITTED, help="the folder to write")
    parser.add_argument("--minilm", type=Path, default=Path("models") / MINILM, help="the folder of minilm")
    options = parser.parse_args(arguments)
    source = read_source(options.minilm)
    model, tokenizer = new_model(source)
    train(model, tokenizer, sentences(source, held_out=False, seed=SEED))
    model.half().float()
    found = sentences(source, held_out=True, seed=HELD_OUT_SEED)
    f1 = f1_of(model, tokenizer, [next(found) for _ in range(NUM_HELD_OUT)])
    if f1 < MIN_F1:
        raise SystemExit(f"expected an F1 of {MIN_F1} on the held-out sentences, got {f1:.4f}; nothing written")
    model.half().save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    print(f"{options.out}: F1 {f1:.4f} on {NUM_HELD_OUT} held-out sentences")


def sentences(source: Source, held_out: bool, seed: int) -> Iterator[Sentence]:
    """Yield sentences for training without end, or of held-out names in held-out templates."""
    words = read_words()
    more = more_names(source, words, scores_of(source, split_words(words, held_out=False)))
    known = {name.lower() for each in more.values() for name in each}
    common = [word for word in common_words(source, words)[:NUM_WORDS] if word not in known]
    every = {**words, **{kind: (*words[kind], *more[kind]) for kind in KINDS}}
    random = Random(seed)
    writer = Writer(split_words(every, held_out), common, random, "held_out" if held_out else "sentence")
    names = {name for kind in KINDS for name in every[kind] if " " not in name}
    plain = [] if held_out else plain_sentences(names)
    while True:
        if plain and random.random() < PROSE_SHARE:
            yield Sentence(random.choice(plain), ())
        else:
            yield writer.sentence()


def plain_sentences(names: set[str]) -> list[str]:
    """Return sentences of Python's documentation in which no word is a name of the lists."""
    paragraphs = (each for document in prose.documents() for entry in document.entries for each in entry.paragraphs)
    split = (sentence for paragraph in paragraphs for sentence in re.split(r"(?<=[.!?]) ", paragraph))
    return [each for each in split if 20 < len(each) < MAX_PROSE and not names & {*re.findall(r"\w+", each)}]


def new_model(source: Source) -> tuple[Any, Any]:
    """Return the model before its training, with the first word vectors, and its tokenizer."""
    import torch
    from transformers import RoFormerConfig, RoFormerForTokenClassification

    words = read_words()
    scores = scores_of(source, split_words(words, held_out=False))
    vocabulary = vocabulary_of(source, words, more_names(source, words, scores))
    vectors, given = vectors_of(vocabulary, source, scores, VECTOR)
    torch.manual_seed(SEED)
    config = RoFormerConfig(
        vocab_size=len(vocabulary),
        embedding_size=VECTOR,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
        max_position_embeddings=MAX_TOKENS,
        pad_token_id=0,
        hidden_dropout_prob=0.0,  # no sentence is read twice
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )
    model: Any = RoFormerForTokenClassification(config)
    table = model.roformer.embeddings.word_embeddings.weight
    table.data = torch.from_numpy(vectors)
    # The vectors of the source stay as they are: a name that is never trained is like those that are.
    learned = torch.from_numpy(~given).float()[:, None]
    table.register_hook(lambda gradient: gradient * learned)
    return model, new_tokenizer(vocabulary, MAX_TOKENS)


def labels_of(sentence: Sentence, offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Return a label for each token, -100 for those without characters."""
    labels = [-100 if first == last else 0 for first, last in offsets]
    for start, end, kind in sentence.spans:
        inside = [index for index, (first, last) in enumerate(offsets) if start <= first < last <= end]
        for index in inside:
            labels[index] = LABELS.index(f"I-{kind}")
        if inside:
            labels[inside[0]] = LABELS.index(f"B-{kind}")
    return labels


def train(model: Any, tokenizer: Any, made: Iterator[Sentence]) -> None:
    """Train for STEPS batches, deterministic for given versions of torch, transformers and Python on one CPU."""
    import torch

    model.train()
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, STEPS, pct_start=0.1)
    losses = []
    for step in range(1, STEPS + 1):
        batch = [next(made) for _ in range(BATCH_SIZE)]
        read = tokenizer([each.text for each in batch], return_offsets_mapping=True, truncation=True)
        longest = max(len(row) for row in read["input_ids"])
        rows = [labels_of(each, offsets) for each, offsets in zip(batch, read["offset_mapping"], strict=True)]
        inputs = tokenizer.pad({"input_ids": read["input_ids"]}, return_tensors="pt")
        labels = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])
        loss = model(**inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 200 == 0:
            print(f"step {step} of {STEPS}: loss {sum(losses[-200:]) / 200:.4f}", flush=True)
    model.eval()


def f1_of(model: Any, tokenizer: Any, wanted: Sequence[Sentence]) -> float:
    """Return the F1 of whole names (characters and kind) as transformers' pipeline finds them, a word at a time."""
    from transformers import pipeline

    finder: Any = pipeline("token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="first")
    right = found = 0
    for sentence, answer in zip(wanted, finder([each.text for each in wanted]), strict=True):
        spans = {(each["start"], each["end"], each["entity_group"]) for each in answer}
        right += len(spans & set(sentence.spans))
        found += len(spans)
    return 2 * right / (found + sum(len(each.spans) for each in wanted))


if __name__ == "__main__":
    main()
