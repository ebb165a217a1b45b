"""The second stage of ``tiny-vision``: the language model learns conversations, and reads the vectors of the tower.

The tower is finished before. It computes the vectors of all pictures once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import nn

from tools.training import tiny_vision_talks as talks
from tools.training.tiny_vision_talks import Talk, talk_about
from tools.training.tiny_vision_tower import Pictures, optimizers_of, to_input, train_by

IMAGE_TOKENS_PER_SIDE = 4
TALKS_PER_STEP = 32
STEPS_SORTED_TOGETHER = 8
MATRIX_LEARNING_RATE, LEARNING_RATE = 1e-2, 3e-3
PICTURES_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Shown:
    """The pictures of conversations, and the tokenizer of their texts."""

    pictures: Pictures
    tokenizer: Any


def train_language(model: Any, shown: Shown, steps: int, seed: int) -> None:
    """Train all of a transformers LLaVA but its tower."""
    torch.manual_seed(seed)
    language = model.model.language_model
    trained = nn.ModuleDict(
        {"embedding": language.embed_tokens, "layers": language.layers, "norm": language.norm}
        | {"projector": model.model.multi_modal_projector}
    )
    optimizers = optimizers_of(trained, MATRIX_LEARNING_RATE, LEARNING_RATE)
    model.train()
    model.model.vision_tower.eval()
    train_by(trained, optimizers, _losses(model, shown, seed), steps)
    model.eval()


def vectors_of(tower: Any, pictures: Pictures) -> torch.Tensor:
    """Return the tower's last hidden states, which the projector reads: float32 [pictures, tokens, size]."""
    found = []
    with torch.no_grad():
        for first in range(0, len(pictures), PICTURES_AT_ONCE):
            pixels = to_input(pictures.pixels[first : first + PICTURES_AT_ONCE])
            found.append(tower(pixels, output_hidden_states=True).hidden_states[-1])
    return torch.cat(found)


def _losses(model: Any, shown: Shown, seed: int) -> Iterator[Any]:
    vectors = vectors_of(model.model.vision_tower, shown.pictures)
    for batch in _batches(shown.pictures, seed):
        ids, labels = encoded(batch, shown.tokenizer)
        embeddings = model.get_input_embeddings()(ids)
        seen = model.model.multi_modal_projector(vectors[[index for talk in batch for index in talk.pictures]])
        is_image = (ids == model.config.image_token_id).unsqueeze(-1)
        embeddings = embeddings.masked_scatter(is_image, seen)
        states = model.model.language_model(inputs_embeds=embeddings, use_cache=False).last_hidden_state
        is_learnt = labels[:, 1:] != -100
        yield nn.functional.cross_entropy(model.lm_head(states[:, :-1][is_learnt]), labels[:, 1:][is_learnt])


def _batches(pictures: Pictures, seed: int) -> Iterator[list[Talk]]:
    """Yield conversations; those of a batch have about the same length."""
    chance = Random(seed)
    names = [pictures.name(index) for index in range(len(pictures))]
    while True:
        made = [talk_about(names, chance) for _ in range(TALKS_PER_STEP * STEPS_SORTED_TOGETHER)]
        made.sort(key=lambda talk: (len(talk.pictures), len(talk.messages)))
        batches = [made[first : first + TALKS_PER_STEP] for first in range(0, len(made), TALKS_PER_STEP)]
        chance.shuffle(batches)
        yield from batches


def encoded(batch: Sequence[Talk], tokenizer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids of conversations, int64 [n, tokens], padded at the end, and the labels: the answers alone, -100
    elsewhere.
    """
    answers, end = tokenizer.convert_tokens_to_ids(["<|assistant|>", talks.END_OF_TURN])
    texts = [
        tokenizer.apply_chat_template(talk.messages, chat_template=talks.CHAT_TEMPLATE, tokenize=False)
        for talk in batch
    ]
    images = talks.IMAGE * IMAGE_TOKENS_PER_SIDE**2
    rows = [
        each.ids
        for each in tokenizer.backend_tokenizer.encode_batch(
            [text.replace(talks.IMAGE, images) for text in texts], add_special_tokens=False
        )
    ]
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    labels = torch.full_like(ids, -100)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
        is_answer = False
        for at, token in enumerate(row):
            if is_answer:
                labels[number, at] = token
            is_answer = token == answers or (is_answer and token != end)
    return ids, labels


def are_right(model: Any, batch: Sequence[Talk], shown: Shown) -> list[bool]:
    """Return for each conversation whether greedy generation gives all of its answers."""
    ids, labels = encoded(batch, shown.tokenizer)
    indices = [index for talk in batch for index in talk.pictures]
    pixels = to_input(shown.pictures.pixels[indices]) if indices else None
    with torch.inference_mode():
        best = model(input_ids=ids, pixel_values=pixels, use_cache=False).logits.argmax(-1)
    found: list[bool] = ((best[:, :-1] == labels[:, 1:]) | (labels[:, 1:] == -100)).all(1).tolist()
    return found
