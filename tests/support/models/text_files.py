"""The files around a text model's weights: a small real tokenizer, and what sentence-transformers writes beside it."""

import json
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any, Literal

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

Style = Literal["bert", "roberta", "mpnet"]
"""Whose special tokens: BERT's [PAD] is 0, RoBERTa's and MPNet's <pad> is 1."""

SPECIAL_TOKENS: dict[Style, tuple[str, ...]] = {
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "mpnet": ("<s>", "<pad>", "</s>", "[UNK]", "<mask>"),
}
WORDS = ("the", "cat", "sat", "on", "mat", "engine", "turntable", "steam", "runs", "of", "query", ":", ".", ",")
VOCABULARY_SIZE = 128
"""Rows of the embeddings of the models that read these tokens: more than any style has."""

TEXTS = (
    "the cat sat on the mat .",
    "steam",
    "the engine of the turntable runs on steam , the cat sat on the engine of steam .",
    "",
    "The CAT sat On",
    "zebra crossing",
    "a\tb \n c",
    "日本語 ünïcödé",
)
"""Ragged in length: empty, one word, unknown words, capitals, letters of other scripts."""


def write_json(file: Path, content: object) -> Path:
    """Writes `content`, making the folder where it is not there; the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")
    return file


def change_json(file: Path, **changes: object) -> None:
    """Sets keys of the object in a JSON file; None takes a key away."""
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    write_json(file, {key: value for key, value in (content | changes).items() if value is not None})


def write_tokenizer(
    folder: Path,
    style: Style = "bert",
    *,
    lower_case: bool = True,
    special_tokens: bool = True,
    max_length: int = 0,
    token_types: bool = False,
) -> None:
    """tokenizer.json and tokenizer_config.json of a WordPiece tokenizer over `WORDS` and single letters.

    `special_tokens` False: nothing is put around a text, so an empty one has no token at all. `max_length` is
    written as model_max_length unless it is 0. `token_types`: whether token_type_ids are among model_input_names.
    """
    names = SPECIAL_TOKENS[style]
    pieces = [*names, *WORDS, *ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase)]
    unknown = names[3] if style != "bert" else names[1]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    first, last = (names[2], names[3]) if style == "bert" else (names[0], names[2])
    pad, mask = (names[0] if style == "bert" else names[1]), names[4]
    if special_tokens:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} $B:1 {last}:1" if style == "bert" else f"{first} $A {last} {last} $B {last}",
            special_tokens=[(name, names.index(name)) for name in (first, last)],
        )
    tokenizer.add_special_tokens(list(names))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", *(["token_type_ids"] if token_types else []), "attention_mask"],
        "pad_token": pad, "unk_token": unknown, "cls_token": first, "sep_token": last, "mask_token": mask,
    }  # fmt: skip
    write_json(folder / "tokenizer_config.json", config | ({"model_max_length": max_length} if max_length else {}))


def write_sentence_transformers(
    folder: Path,
    pooling: str = "mean",
    *,
    normalize: bool = True,
    max_seq_length: int | None = None,
    do_lower_case: bool = False,
    prompt: str = "",
    dimension: int = 32,
    more_modules: Sequence[str] = (),
) -> None:
    """modules.json and what it names, as sentence-transformers wrote them for years. `more_modules`: class names."""
    flags = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "lasttoken": "lasttoken"}
    kinds = ["Transformer", "Pooling", *more_modules, *(["Normalize"] if normalize else [])]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": dimension}
        | {f"pooling_mode_{flag}": mode == pooling for mode, flag in flags.items()}
        | {"pooling_mode_mean_sqrt_len_tokens": pooling == "mean_sqrt_len_tokens"},
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": do_lower_case})
    if prompt:
        write_json(
            folder / "config_sentence_transformers.json",
            {"prompts": {"query": prompt}, "default_prompt_name": "query"},
        )
