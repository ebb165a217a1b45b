"""Training data of ``tiny-llama``: the tokenizer, and texts and dialogues as rows of token ids."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from tools.training import dialogues
from tools.training.prose import Document

SMALL_TALKS_PER_EPOCH = 60


class Batch(NamedTuple):
    """Token ids, the labels to learn (-100: none) and the positions, all int64 [rows, context]."""

    ids: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor


def train_tokenizer(texts: Sequence[Document], vocabulary: int, context: int) -> Any:
    """Return a byte-level BPE tokenizer of transformers with at most ``vocabulary`` tokens; it prepends ``<s>``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(dialogues.SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((x for document in texts for e in document.entries for x in e.paragraphs), trainer)
    begin = dialogues.BEGIN
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A",
        pair=f"{begin} $A {begin} $B",
        special_tokens=[(begin, tokenizer.token_to_id(begin))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=dialogues.END_OF_TEXT,
        pad_token=dialogues.PAD,
        additional_special_tokens=[x for x in dialogues.SPECIAL_TOKENS if x.startswith("<|")],
        chat_template=dialogues.CHAT_TEMPLATE,
        model_max_length=context,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def text_of(document: Document) -> str:
    """Return the text of a document: paragraphs separated by empty lines, between the begin and end tokens."""
    paragraphs = (paragraph for entry in document.entries for paragraph in entry.paragraphs)
    return dialogues.BEGIN + "\n\n".join(paragraphs) + dialogues.END_OF_TEXT


def batches(texts: Sequence[Document], tokenizer: Any, context: int, rows_per_batch: int, seed: int) -> Iterator[Batch]:
    """Yield batches endlessly: each epoch has every document and one dialogue per entry. Every token is learnt. The
    same seed gives the same batches.
    """
    chance = random.Random(seed)
    plain = [text_of(document) for document in texts]
    asked_about = [entry for x in texts for entry in x.entries if dialogues.can_be_asked_about(entry)]
    while True:
        talks = [dialogues.dialogue(entry, chance) for entry in asked_about]
        talks += [dialogues.small_talk(chance) for _ in range(SMALL_TALKS_PER_EPOCH)]
        written = [tokenizer.apply_chat_template(x, tokenize=False) + dialogues.END_OF_TEXT for x in talks]
        read = [*plain, *written]
        chance.shuffle(read)
        rows = list(rows_of(read, tokenizer, context))
        chance.shuffle(rows)  # separates the rows of a long document
        for first in range(0, len(rows) - rows_per_batch + 1, rows_per_batch):
            ids = torch.stack(rows[first : first + rows_per_batch])
            yield Batch(ids, ids, torch.arange(context).expand_as(ids))


def rows_of(texts: Sequence[str], tokenizer: Any, context: int) -> torch.Tensor:
    """Return the ids of all texts, concatenated, int64 [n, context]. An incomplete last row is dropped."""
    # The backend tokenizer: the one of transformers warns about texts longer than the model's context.
    encodings = tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
    ids = [token for encoding in encodings for token in encoding.ids]
    return torch.tensor(ids[: len(ids) // context * context]).reshape(-1, context)
