"""Make the vocabulary of the ``names`` model, and its first word vectors, from those of ``minilm``.

``minilm`` has read far more text than the sentences of `name_sentences`: its vectors of *berlin* and *toronto* are
alike. A small classifier of them, taught by the lists, finds more words of each list. The vectors in fewer dimensions
are those with which the training of `names` begins. So the model knows names that no list has.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.training.name_sentences import Words

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ßæøłđœÆØŁĐ"
MARKS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~€£§°·—“”„…«»\u2013\u2018\u2019"
NUM_COMMON, NUM_CAPITALISED, NUM_ENDINGS = 4000, 900, 1300
NUM_SKIPPED = 400
"""First words of the vocabulary that are learned as none of the lists: function words and such."""
KINDS = ("first_names", "last_names", "places", "organisations")
MIN_PROBABILITY = 0.93
MIN_LENGTH = 4
"""Shorter words are found by no classifier."""

_WORD = re.compile(r"[a-z]{2,}")


@dataclass(frozen=True, slots=True)
class Source:
    """The words of ``minilm``, lowercase and by falling frequency, and their vectors, float32 [words, 384]."""

    words: tuple[str, ...]
    vectors: Any

    def row_of(self) -> dict[str, int]:
        """Return word → row."""
        return {word: row for row, word in enumerate(self.words)}


def read_source(folder: Path) -> Source:
    """Read vocabulary and vectors of a BERT folder."""
    from safetensors.numpy import load_file

    words = tuple((folder / "vocab.txt").read_text(encoding="utf-8").split("\n"))
    tensors = load_file(folder / "model.safetensors")
    (name,) = (key for key in tensors if key.endswith("word_embeddings.weight"))
    vectors = tensors[name].astype(np.float32)
    return Source(words[: len(vectors)], vectors - vectors[1996:].mean(0))


def common_words(source: Source, words: Words) -> tuple[str, ...]:
    """Return the most frequent words that are in no list of names, by falling frequency."""
    names = {part.lower() for kind in KINDS for name in words[kind] for part in name.split()}
    plain = {word.lower() for kind in ("nouns", "adjectives") for word in words[kind]}
    return tuple(w for w in source.words[1996:] if _WORD.fullmatch(w) and (w in plain or w not in names))


def scores_of(source: Source, words: Words) -> Any:
    """Return how much each word of the source is of each of KINDS, or none: float32 [words, 5], log probabilities.

    ``words``: the lists that teach the classifier, without names that are held out.
    """
    import torch

    row_of, common = source.row_of(), common_words(source, words)
    taught = [{w.lower() for w in words[kind] if w.lower() in row_of} for kind in KINDS]
    taught.append({*common[:1500], *(w for kind in ("nouns", "adjectives") for w in words[kind] if w in row_of)})
    pairs = [(row_of[word], kind) for kind, each in enumerate(taught) for word in sorted(each)]
    x, y = torch.tensor(source.vectors), torch.tensor([kind for _, kind in pairs])
    x = x / x.norm(dim=1, keepdim=True)
    torch.manual_seed(0)
    probe = torch.nn.Linear(x.shape[1], len(taught))
    optimizer = torch.optim.Adam(probe.parameters(), 0.03, weight_decay=1e-4)
    rows = torch.tensor([row for row, _ in pairs])
    for _ in range(300):
        loss = torch.nn.functional.cross_entropy(probe(x[rows]), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.inference_mode():
        return probe(x).log_softmax(1).numpy()


def more_names(source: Source, words: Words, scores: Any) -> dict[str, tuple[str, ...]]:
    """Return further names for each of KINDS, capitalised, that `scores_of` finds and no list has."""
    known = {name.lower() for each in words.values() for name in each}
    found: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for row in range(1996 + NUM_SKIPPED, len(source.words)):
        word, kind = source.words[row], int(scores[row].argmax())
        fits = kind < len(KINDS) and scores[row, kind] > math.log(MIN_PROBABILITY) and word not in known
        if fits and len(word) >= MIN_LENGTH and _WORD.fullmatch(word):
            found[KINDS[kind]].append(word.capitalize())
    return {kind: tuple(each) for kind, each in found.items()}


def vocabulary_of(source: Source, words: Words, more: Words) -> tuple[str, ...]:
    """Return the pieces of words: special ones, letters, names, common words, and endings of words."""
    common = common_words(source, words)
    row_of = source.row_of()
    listed = {
        part for kind in (*KINDS, "prefixes", "businesses") for name in words[kind] for part in re.split(r"\W", name)
    }
    names = sorted(part for part in listed if part.lower() in row_of and len(part) > 1 and part[0].isupper())
    names += [name for kind in KINDS for name in more[kind]]
    days = [w for w in source.words[1996:] if w.endswith("day") and len(w) < 10]
    ends = [w for w in source.words if re.fullmatch(r"##[a-z]{2,4}", w)][:NUM_ENDINGS]
    starts = sorted({w[:n].capitalize() for w in listed for n in (2, 3) if re.fullmatch(r"[A-Za-z]{4,}", w)})
    capitals = [w.capitalize() for w in [*source.words[1996 : 1996 + NUM_CAPITALISED], *days] if _WORD.fullmatch(w)]
    pieces = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *MARKS, *names, *capitals, *starts, *ends]
    return tuple(dict.fromkeys([*pieces, *common[:NUM_COMMON], *source.words[1996:2300]]))


def vectors_of(vocabulary: Sequence[str], source: Source, scores: Any, size: int) -> tuple[Any, Any]:
    """Return the first vector of each piece, float32 [pieces, size], and which pieces have one of the source.

    A vector is the source's in its principal axes, the scores of `scores_of`, and whether the piece is capitalised.
    Pieces without one get noise.
    """
    row_of = source.row_of()
    rows = np.array([row_of.get(piece if piece in row_of else piece.lower(), -1) for piece in vocabulary])
    given = rows >= 0
    chosen = source.vectors[rows[given]]
    chosen = chosen - chosen.mean(0)
    _, _, axes = np.linalg.svd(chosen, full_matrices=False)
    reduced = chosen @ axes[: size - scores.shape[1] - 1].T
    kinds = np.maximum(scores[rows[given]], -10)
    vectors = np.random.default_rng(0).normal(0, 0.3, (len(vocabulary), size)).astype(np.float32)
    capital = np.array([0.6 if piece[:1].isupper() else -0.6 for piece in vocabulary])
    parts = (reduced / reduced.std(0) * 0.5, (kinds - kinds.mean(0)) / kinds.std(0) * 0.6, capital[given, None])
    vectors[given] = np.concatenate(parts, 1)
    return vectors, given


def new_tokenizer(vocabulary: Sequence[str], max_length: int) -> Any:
    """Return a cased WordPiece tokenizer that removes accents, as transformers saves it."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {piece: index for index, piece in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=60))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=True, lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.decoder = decoders.WordPiece()
    special = {f"{name[1:-1].lower()}_token": name for name in SPECIAL}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=max_length, **special)
