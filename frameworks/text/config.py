"""Read the configuration files of a text model: limits, pooling, normalisation, labels.

Sources: Hugging Face `config.json` and `tokenizer_config.json`; sentence-transformers `modules.json`,
`sentence_*_config.json`, `config_sentence_transformers.json` and the pooling module's `config.json`; tokenizers'
`tokenizer.json` for the limit where the others state none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.generation.image_text_models import BASES, PAGE_RETRIEVERS
from frameworks.generation.image_text_models import SERVED as IMAGE_TEXT_MODELS
from frameworks.tasks.architectures import SPEECH_DECODERS
from frameworks.text.late_interaction import PROJECTIONS, LateInteraction, read_late_interaction
from frameworks.text.pair_scores import Answers, PairMessages, read_answers, read_pair_messages, read_scores_are_logits
from frameworks.text.sentence_modules.modules import Module, read_modules
from frameworks.text.sentence_modules.order import SERVED, SPARSE_TABLE, Order, read_order
from frameworks.text.sentence_modules.pooling_module import pools_prompt, read_pooling
from frameworks.text.sentence_modules.router import Side
from frameworks.text.sentence_modules.sparse_modules import read_max_active_dims
from frameworks.text.sentence_modules.sparse_pooling import SparsePooling, read_sparse_pooling
from frameworks.text.tokenizer_class import gives_token_types
from frameworks.text.tokenizer_settings import TokenizerSettings, read_tokenizer_settings
from frameworks.text.truncation import (
    NO_LIMIT,
    integer_of,
    stated_max_tokens,
    truncates_left,
    truncation_limit,
    truncation_of,
)
from frameworks.text.unserved_settings import refuse_unserved

_CLASSIFIES = "ForSequenceClassification"
GENERATES = ("ForCausalLM", "LMHeadModel")
"""Ends of the architectures that generate text."""
ENCODER_DECODERS = frozenset(
    {
        "BartForConditionalGeneration", "BigBirdPegasusForConditionalGeneration", "BlenderbotForConditionalGeneration",
        "BlenderbotSmallForConditionalGeneration", "LongT5ForConditionalGeneration", "M2M100ForConditionalGeneration",
        "MBartForConditionalGeneration", "MT5ForConditionalGeneration", "MarianMTModel",
        "PLBartForConditionalGeneration", "PegasusForConditionalGeneration", "PegasusXForConditionalGeneration",
        "T5ForConditionalGeneration", "UMT5ForConditionalGeneration",
    }
)  # fmt: skip
"""Classes that read a text with an encoder, and generate another one with a decoder. Not those with experts, such as
SwitchTransformers: an expert takes so many tokens of a batch, and a text would depend on its neighbours.
"""
# Ends of those that embed: their heads, if they have any, are for the training. Contriever's class is its own.
_EMBEDS = ("Model", "Encoder", "ForMaskedLM", "ForPreTraining", "Contriever")
_EMBEDS_NOT = ("DoubleHeadsModel",)
# sentence-transformers bounds no text of static embeddings; a server does.
_MAX_STATIC_TOKENS = 65_536
_ONE_LABEL = ("LABEL_0",)
_DEFAULT_MAX_TOKENS = 512
_MOST_LABELS = 1_000_000
_MOST_PROMPTS = 1000
_LARGEST_EMBEDDING = 65_536


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The text settings of a model's folder. `pooling`: modes joined by "+"; None where undefined.

    `prompt`: prefix of every text. `pools_prompt`: its tokens are pooled too.

    `shorter_sizes`: sizes for which truncated embeddings were trained (Matryoshka), ascending. `reads_token_types`:
    whether token types distinguish the texts of a pair, where the model has an input for them. `prompts`: those that
    requests may choose instead of `prompt`, by name. `answers`: of a language model that scores pairs of texts.
    `pair_messages`: the form of such a pair. `truncates_left`: whether the end of a long text is kept.
    `scores_are_logits`: of pairs, where the model has one label; else a sigmoid is applied. `is_regression`: the values
    of the labels are not probabilities.
    `late`: of a model of late interaction. `sparse`: of a model of sparse vectors.
    `max_positions`: of its encoder; 0 where unknown.
    `tokenizer_settings`: what the files change of the tokenizer in tokenizer.json. `vector_modules`: those that compute
    an embedding from the pooled vector, without a Normalize at the end, which `normalize` is. `token_modules`: those
    between the encoder and the pooling. `static`: the module that has a row for each token, instead of an encoder.
    `words`: the module that reads whole words, instead of an encoder. `sparse_module`: the one whose vectors are
    sparse. `max_active_dims`: number of their values that are kept; None: all.
    """

    max_tokens: int
    pad_token_id: int
    pooling: str | None
    normalize: bool
    prompt: str
    lower_case: bool
    architecture: str
    model_type: str
    labels: tuple[str, ...]
    multi_label: bool
    is_encoder_decoder: bool
    hidden_size: int = 0
    shorter_sizes: tuple[int, ...] = ()
    reads_token_types: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict, hash=False)
    answers: Answers | None = None
    pair_messages: PairMessages = field(default_factory=PairMessages)
    truncates_left: bool = False
    scores_are_logits: bool = False
    is_regression: bool = False
    tokenizer_settings: TokenizerSettings = field(default_factory=TokenizerSettings)
    late: LateInteraction | None = None
    sparse: SparsePooling | None = None
    max_positions: int = 0
    vector_modules: tuple[Module, ...] = ()
    static: Module | None = None
    pools_prompt: bool = True
    token_modules: tuple[Module, ...] = ()
    words: Module | None = None
    sparse_module: Module | None = None
    max_active_dims: int | None = None

    @property
    def classifies(self) -> bool:
        return self.architecture.endswith(_CLASSIFIES) or self.answers is not None

    @property
    def has_task(self) -> bool:
        """Whether the model embeds, classifies, scores or generates texts. Classes of other tasks end otherwise.

        An encoder with a module for its pooling embeds, whatever its class, as in sentence-transformers.
        """
        embeds = self.architecture.endswith(_EMBEDS) and not self.architecture.endswith(_EMBEDS_NOT)
        return (
            embeds
            or self.late is not None
            or self.reads_pages
            or not self.architecture
            or self.pooling is not None
            or self.classifies
            or self.generates
        )

    @property
    def generates(self) -> bool:
        """Whether the model generates text. A language model with a module for its output embeds, or scores pairs."""
        generates = self.architecture.endswith(GENERATES) or self.architecture in IMAGE_TEXT_MODELS
        return (generates or self.has_encoder) and self.pooling is None and self.answers is None

    @property
    def has_encoder(self) -> bool:
        """Whether the model generates with a decoder over the states of an encoder."""
        return (self.architecture in ENCODER_DECODERS or self.reads_speech) and self.pooling is None

    @property
    def reads_speech(self) -> bool:
        """Whether the encoder reads sounds."""
        return self.architecture in SPEECH_DECODERS

    @property
    def reads_pages(self) -> bool:
        """Whether the model has vectors for the tokens of queries, and of images of pages."""
        return self.architecture in PAGE_RETRIEVERS

    @property
    def reads_messages(self) -> bool:
        """Whether the model embeds conversations with images, in its chat template."""
        sees = self.architecture in IMAGE_TEXT_MODELS or self.architecture in BASES
        return sees and self.pooling is not None and self.pair_messages.is_used is True

    def with_answers(self, answers: Answers) -> "TextConfig":
        """Return the configuration of a language model that scores pairs by these answers."""
        return replace(self, answers=answers, labels=_ONE_LABEL, multi_label=True)


def transformer_folder(folder: Path) -> Path:
    """Return the folder of the encoder: the first module of a sentence-transformers model, else the folder itself."""
    modules = read_modules(folder)
    return modules[0].folder if modules else folder


def read_text_config(folder: Path, side: Side | None = None) -> TextConfig:
    """Read the JSON files of a folder. `side`: of a model with sides, whose modules are read.

    Raises InvalidModel for damaged files and unsupported settings.
    """
    if side is not None:
        config = _read(folder, side.modules)
        return config if side.prompt is None else replace(config, prompt=side.prompt)
    return _read(folder, read_modules(folder))


def _read(folder: Path, modules: tuple[Module, ...]) -> TextConfig:
    encoder = modules[0].folder if modules else folder
    config = read_json(encoder / "config.json")
    late = read_late_interaction(folder, modules, config)
    served = SERVED if late is None else (*SERVED, *PROJECTIONS)
    unserved = [module.kind for module in modules if module.kind not in served]
    if unserved:
        raise InvalidModel(
            f"{folder / 'modules.json'}: module {unserved[0]} is not served; the modules served are {', '.join(SERVED)}"
        )
    modules = tuple(module for module in modules if module.kind != "Dropout")
    order = read_order(folder, modules) if late is None else Order()
    tokenizer = read_json(encoder / "tokenizer_config.json")
    truncation = truncation_of(encoder)
    sentence_file = _sentence_file(encoder)
    sentence = read_json(sentence_file)
    sparse = read_sparse_pooling(folder, modules, sentence)
    refuse_unserved(folder, modules, sentence, sentence_file)
    if late is not None and late.document_length is not None:
        sentence = sentence | {"max_seq_length": late.document_length}
    pooling = order.pooling
    labels = _labels(config, encoder)
    architecture = _architecture(config, encoder)
    of_texts = _decoder_of(config, architecture)
    problem = config.get("problem_type")
    max_tokens = stated_max_tokens(of_texts, tokenizer, sentence) or truncation_limit(truncation)
    found = TextConfig(
        max_tokens=max_tokens or _DEFAULT_MAX_TOKENS,
        pad_token_id=max(0, integer_of(config.get("pad_token_id"), 0)),  # -1 is "none" in some
        pooling=None if pooling is None else read_pooling(pooling),
        pools_prompt=pooling is None or pools_prompt(pooling),
        # A sentence-transformers folder normalises if it says so; a bare encoder's vectors are normalised by default.
        normalize=order.normalizes if modules and late is None else True,
        token_modules=order.tokens,
        vector_modules=order.vectors,
        sparse_module=order.sparse,
        prompt=_prompt(folder / "config_sentence_transformers.json") if late is None else late.document_prompt,
        lower_case=bool(sentence.get("do_lower_case")),
        architecture=architecture,
        model_type=str(config.get("model_type") or ""),
        labels=labels,
        # As transformers' own text-classification pipeline decides between sigmoid, softmax and neither.
        multi_label=problem == "multi_label_classification" or len(labels) == 1,
        is_regression=problem == "regression",
        is_encoder_decoder=bool(config.get("is_encoder_decoder")),
        hidden_size=max(0, integer_of(of_texts.get("hidden_size"), 0)),
        shorter_sizes=_shorter_sizes(config, encoder),
        reads_token_types=_reads_token_types(config, tokenizer),
        prompts=_prompts(folder / "config_sentence_transformers.json") if late is None else {},
        pair_messages=read_pair_messages(sentence, encoder, bool(modules)),
        tokenizer_settings=read_tokenizer_settings(config, tokenizer, encoder),
        truncates_left=truncates_left(tokenizer, truncation, encoder),
        late=late,
        sparse=sparse,
        max_positions=max(0, integer_of(of_texts.get("max_position_embeddings"), 0)),
    )
    if modules and modules[0].kind in ("WordEmbeddings", "BoW"):
        return _of_words(found, modules[0], order)
    if sparse is not None or order.sparse is not None:
        file = folder / "config_sentence_transformers.json"
        found = replace(found, max_active_dims=read_max_active_dims(file, read_json(file)))
    if order.sparse is not None and order.sparse.kind == SPARSE_TABLE:
        limit = stated_max_tokens({}, tokenizer, {}) or _MAX_STATIC_TOKENS
        return replace(
            found, static=order.sparse, max_tokens=min(limit, _MAX_STATIC_TOKENS), architecture="",
            model_type="static", labels=(),
        )  # fmt: skip
    if modules and modules[0].kind == "StaticEmbedding":
        return replace(
            found,
            static=modules[0],
            max_tokens=truncation_limit(truncation) or _MAX_STATIC_TOKENS,
            architecture="",
            model_type="static",
            labels=(),
            tokenizer_settings=TokenizerSettings(),
        )
    scoring = [read_answers(module.config_file) for module in modules if module.kind == "LogitScore"]
    if scoring:
        if not found.generates:
            raise InvalidModel(
                f"{folder / 'modules.json'}: LogitScore: expected a causal language model, got {architecture or 'none'}"
            )
        found = found.with_answers(scoring[0])
    _check_texts_are_plain(found, encoder)
    if not (found.generates or (found.classifies and len(found.labels) == 1)):
        return found
    model = read_json(folder / "config_sentence_transformers.json") if modules else {}
    return replace(found, scores_are_logits=read_scores_are_logits(config, model, encoder))


def _of_words(config: TextConfig, module: Module, order: Order) -> TextConfig:
    """Return the settings of a model that reads whole words. Raises InvalidModel."""
    if module.kind == "WordEmbeddings" and order.pooling is None:
        raise InvalidModel(f"{module.folder}: WordEmbeddings: expected Pooling after it, got none; add it")
    if "cls" in (config.pooling or "").split("+"):
        assert order.pooling is not None
        raise InvalidModel(
            f"{order.pooling.config_file}: pooling_mode: expected no cls of WordEmbeddings, which have no such token; "
            "choose another"
        )
    limit = _MAX_STATIC_TOKENS
    if module.kind == "WordEmbeddings":
        limit = min(limit, module.count("max_seq_length", 2**31, NO_LIMIT))
    # sentence-transformers pools the prompt of these models always.
    return replace(
        config, words=module, max_tokens=limit, architecture="", model_type="words", labels=(), pad_token_id=0,
        pools_prompt=True,
    )  # fmt: skip


def _sentence_file(folder: Path) -> Path:
    """Return the file of the first module: of any name that sentence-transformers gave it."""
    names = ["sentence_bert_config.json", *sorted(p.name for p in folder.glob("sentence_*_config.json"))]
    return folder / next((name for name in names if read_json(folder / name)), names[0])


def _check_texts_are_plain(config: TextConfig, folder: Path) -> None:
    """Raise InvalidModel for a model that reads single texts as messages, in its chat template."""
    reads_texts = config.pooling is not None or (config.classifies and len(config.labels) > 1)
    if reads_texts and config.pair_messages.is_used and not config.reads_messages:
        raise InvalidModel(
            f"{folder}: modality_config: expected text, got message; texts in a chat template are not served"
        )


def _prompt(file: Path) -> str:
    config = read_json(file)
    name = config.get("default_prompt_name")
    if name is None:
        return ""
    try:
        return str(config["prompts"][name] or "")
    except (KeyError, TypeError) as error:
        raise InvalidModel(f'{file}: default_prompt_name "{name}" is not one of prompts') from error


def _prompts(file: Path) -> dict[str, str]:
    prompts = read_json(file).get("prompts")
    if not isinstance(prompts, dict):
        return {}
    if len(prompts) > _MOST_PROMPTS:
        raise InvalidModel(f"{file}: expected at most {_MOST_PROMPTS} prompts, got {len(prompts)}")
    return {name: prompt for name, prompt in prompts.items() if isinstance(prompt, str)}


def _decoder_of(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    """Return the settings of the text decoder of a model that sees; of any other model all."""
    whole = config.get("vlm_config", config) if architecture in PAGE_RETRIEVERS else config
    sees = architecture in PAGE_RETRIEVERS or architecture in IMAGE_TEXT_MODELS or architecture in BASES
    decoder = whole.get("text_config") if sees and isinstance(whole, dict) else None
    return decoder if isinstance(decoder, dict) else config


def _architecture(config: dict[str, Any], folder: Path) -> str:
    names = config.get("architectures") or [""]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise InvalidModel(f"{folder / 'config.json'}: architectures is not a list of class names")
    return names[0]


def _labels(config: dict[str, Any], folder: Path) -> tuple[str, ...]:
    named = config.get("id2label")
    if named is None:
        count = integer_of(config.get("num_labels"), 2)
        return tuple(f"LABEL_{i}" for i in range(min(max(1, count), _MOST_LABELS)))
    try:
        by_id = {int(key): str(label) for key, label in named.items()}
        return tuple(by_id[i] for i in range(len(named) or 1))
    except (AttributeError, KeyError, ValueError, TypeError) as error:
        raise InvalidModel(f"{folder / 'config.json'}: id2label does not name the labels 0, 1, … in order") from error


def _shorter_sizes(config: dict[str, Any], folder: Path) -> tuple[int, ...]:
    """Read the keys that vLLM reads: `matryoshka_dimensions`, or `is_matryoshka` for any size."""
    sizes = config.get("matryoshka_dimensions")
    if sizes is None:
        size = integer_of(config.get("hidden_size"), 0) if config.get("is_matryoshka") is True else 0
        return tuple(range(1, min(size, _LARGEST_EMBEDDING)))
    if not isinstance(sizes, list) or not all(integer_of(size, 0) > 0 for size in sizes):
        raise InvalidModel(f"{folder / 'config.json'}: matryoshka_dimensions is not a list of sizes")
    return tuple(sorted(set(sizes)))


def _reads_token_types(config: dict[str, Any], tokenizer: dict[str, Any]) -> bool:
    """Return False for a model with one token type, and for a tokenizer that omits them."""
    return gives_token_types(config, tokenizer) and integer_of(config.get("type_vocab_size"), 2) > 1
