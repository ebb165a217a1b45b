"""Small tokenizers as generating models have them, trained on a few sentences, and the folders around them."""

import json
from pathlib import Path
from typing import Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.support.models.text_files import write_json

Kind = Literal["gpt2", "llama2", "gemma", "words", "suffixes", "metaspace", "plain"]
"""`gpt2`: byte-level BPE. `llama2` and `gemma`: BPE with bytes for what it lacks, with and without a space that is put
before a text and taken away again. The others have no bytes: `words` is WordPiece, `suffixes` BPE with an end of word.
"""

SENTENCES = (
    "the cat sat on the mat . the engine of steam runs on the turntable , and the cat sat on it .",
    "The turntable turns   the engine ; naïve cafés serve “déjà vu” — 你好世界。你好。",
    "def engine(steam):\n    return [steam, 'runs', 42]\n",
)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('no role is named ' + message['role']) }}{% endif %}"
    "<|{{ message['role'] }}|>\n{{ message['content'] | trim }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
BOS, EOS, UNKNOWN = "<s>", "</s>", "<unk>"
SPECIAL_TOKENS = (UNKNOWN, BOS, EOS)


def make_tokenizer(kind: Kind) -> Tokenizer:
    """`<unk>`, `<s>` and `</s>` are 0, 1 and 2; `<tool>` is the last, an added token that is not special."""
    match kind:
        case "gpt2":
            tokenizer = Tokenizer(models.BPE())
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            _train(tokenizer, alphabet=pre_tokenizers.ByteLevel.alphabet())
        case "llama2" | "gemma":
            tokenizer = _with_bytes(puts_space_before=kind == "llama2")
        case "words":
            tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
            tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
            tokenizer.decoder = decoders.WordPiece()
            tokenizer.train_from_iterator(
                SENTENCES,
                trainers.WordPieceTrainer(vocab_size=150, special_tokens=[*SPECIAL_TOKENS], show_progress=False),
            )
        case "suffixes":
            tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN, end_of_word_suffix="</w>"))
            tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
            tokenizer.decoder = decoders.BPEDecoder()
            _train(tokenizer, suffix="</w>")
        case "metaspace":
            tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
            tokenizer.decoder = decoders.Metaspace()
            _train(tokenizer)
        case "plain":
            tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
            tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
            _train(tokenizer)
    tokenizer.add_special_tokens([*SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def write_generation_tokenizer(
    folder: Path, kind: Kind = "gpt2", *, behind: bool = False, chat_template: str | None = None
) -> Path:
    """tokenizer.json and what stands beside it. `<s>` is put before a text and, with `behind`, `</s>` behind it."""
    tokenizer = make_tokenizer(kind)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {EOS}" if behind else f"{BOS} $A", special_tokens=[(BOS, 1), (EOS, 2)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS, "eos_token": EOS, "unk_token": UNKNOWN,
        "clean_up_tokenization_spaces": True,
    }  # fmt: skip
    write_json(folder / "tokenizer_config.json", config | ({"chat_template": chat_template} if chat_template else {}))
    return folder


def _train(tokenizer: Tokenizer, alphabet: list[str] | None = None, suffix: str = "") -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[*SPECIAL_TOKENS],
        initial_alphabet=alphabet or [],
        show_progress=False,
        end_of_word_suffix=suffix,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)


def _with_bytes(*, puts_space_before: bool) -> Tokenizer:
    """As SentencePiece's BPE models are converted: 256 tokens of a byte each, then those of the training."""
    spaces = normalizers.Replace(" ", "▁")
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    _train(trained)
    content = json.loads(trained.to_str())["model"]
    names = [*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256))]
    # The Chinese of the sentences is left to the bytes.
    names += [name for name in content["vocab"] if name not in SPECIAL_TOKENS and max(name) < "\u3000"]
    vocabulary = {name: i for i, name in enumerate(names)}
    merges = [(first, second) for first, second in content["merges"] if first + second in vocabulary]
    merges = [pair for pair in merges if all(part in vocabulary for part in pair)]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=UNKNOWN, fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if puts_space_before else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if puts_space_before else steps)
    return tokenizer
