"""Make the tokenizer of a family: WordPiece, byte-level BPE or Unigram, from a few sentences."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from tests.support.models.generation_tokenizers import SENTENCES
from tests.support.models.tasks.configs import POSITIONS
from tests.support.models.text_files import TEXTS

SPECIAL: dict[str, tuple[str, ...]] = {
    "words": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "bytes": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "pieces": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
}
"""Kind of tokenizer to its special tokens, by id."""
_WORDS = (
    "Bert",
    "Electra",
    "Funnel",
    "MPNet",
    "RoFormer",
    "Esm",
    "Splinter",
    "Lxmert",
    "Tapas",
    "LayoutLMv2",
    "RoCBert",
    "CLIP",
)
_PIECES = (
    "Albert", "BigBird", "Camembert", "DebertaV2", "FNet", "RemBert", "XLMRoberta", "T5", "XLNet", "MBart", "Reformer",
    "PLBart", "Gemma",
)  # fmt: skip
_DOUBLED = ("Roberta", "XLMRoberta", "Camembert", "MPNet", "Luke", "MarkupLM", "LayoutLMv3")
PYTHON_ONLY: dict[str, tuple[str, dict[str, int]]] = {
    "canine": ("CanineTokenizer", {"pad_token_id": 0, "bos_token_id": 57344, "eos_token_id": 57345}),
    "perceiver": ("PerceiverTokenizer", {"pad_token_id": 0, "vocab_size": 262}),
}
"""Families whose tokens are characters or bytes: class, and ids."""


def kind_of(model_type: str) -> str:
    """Return the kind of tokenizer of a family."""
    name = str(TOKENIZER_MAPPING_NAMES.get(model_type))
    if name.startswith(_PIECES) and not name.startswith("BertTokenizer"):
        return "pieces"
    return "words" if name.startswith(_WORDS) or "Bert" in name else "bytes"


def token_ids(kind: str) -> dict[str, int]:
    """Return the ids that configs name."""
    first, last, pad = (2, 3, 0) if kind == "words" else (0, 2, 1)
    return {
        "pad_token_id": pad, "bos_token_id": first, "eos_token_id": last, "cls_token_id": first, "sep_token_id": last,
        "mask_token_id": 4, "decoder_start_token_id": last, "unk_token_id": 1 if kind == "words" else 3,
    }  # fmt: skip


@lru_cache(maxsize=4)
def _trained(kind: str) -> Tokenizer:
    special = list(SPECIAL[kind])
    texts = [*SENTENCES, *TEXTS, "This example is about sport, politics and science."]
    trainer: Any
    if kind == "words":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    elif kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False
        )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def make_tokenizer(kind: str, *, token_types: bool, around: bool, doubled: bool = False) -> Any:
    """Return a tokenizer. `around`: special tokens stand around a text, as encoders have them.

    `doubled`: two separators stand between the texts of a pair, as RoBERTa has them.
    """
    tokenizer = Tokenizer.from_str(_trained(kind).to_str())
    pad, unknown, first, last, mask = (
        SPECIAL["words"] if kind == "words" else ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
    )
    if around:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} {last} $B {last}" if doubled else f"{first} $A {last} $B:1 {last}:1",
            special_tokens=[(name, tokenizer.token_to_id(name)) for name in (first, last)],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", *(["token_type_ids"] if token_types else []), "attention_mask"],
        model_max_length=POSITIONS - 8,
        pad_token=pad, unk_token=unknown, cls_token=first, sep_token=last, bos_token=first, eos_token=last,
        mask_token=mask,
    )  # fmt: skip


def _table_tokenizer(folder: Path) -> Any:
    words = sorted(_trained("words").get_vocab().items(), key=lambda item: item[1])
    file = folder / "vocab.txt"
    file.write_text("\n".join([*(word for word, _ in words), "[EMPTY]"]), encoding="utf-8")
    return transformers.TapasTokenizer(str(file), model_max_length=POSITIONS - 8)


def save_tokenizer(folder: Path, model_type: str, *, token_types: bool, around: bool, boxes: bool = False) -> Any:
    """Write the tokenizer of a family; return it. `boxes`: it reads words with boxes, where the family has those."""
    if model_type in PYTHON_ONLY:
        made = getattr(transformers, PYTHON_ONLY[model_type][0])(model_max_length=POSITIONS - 8)
    elif model_type == "tapas":
        made = _table_tokenizer(folder)
    elif model_type == "layoutlmv3" and boxes:
        state = json.loads(_trained("bytes").to_str())["model"]
        made = transformers.LayoutLMv3Tokenizer(
            vocab=state["vocab"], merges=[tuple(pair) for pair in state["merges"]], model_max_length=POSITIONS - 8
        )
    else:
        doubled = str(TOKENIZER_MAPPING_NAMES.get(model_type)).startswith(_DOUBLED)
        made = make_tokenizer(kind_of(model_type), token_types=token_types, around=around, doubled=doubled)
    made.save_pretrained(folder)
    return made
