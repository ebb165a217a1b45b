"""Read how pairs of texts are scored: by the `activation_fn` of a cross-encoder, or by the LogitScore module of a
language model and its form of a pair. Both are of sentence-transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json

# Arguments of transformers' apply_chat_template that change more than the variables of the template.
_NOT_VARIABLES = frozenset(
    (
        "chat_template", "common_kwargs", "continue_final_message", "conversation", "documents", "max_length",
        "padding", "restore_suffix", "return_assistant_tokens_mask", "return_dict", "return_tensors",
        "sanitize_control_tokens", "tokenize", "tokenizer_kwargs", "tools", "truncation",
    )
)  # fmt: skip
_WITHOUT_PROMPT: Mapping[str, object] = {"add_generation_prompt": False}


@dataclass(frozen=True, slots=True)
class Answers:
    """The tokens that a language model could continue a pair with, by id or by name.

    The score is the logit of the positive one minus that of the negative one. `negative` None: nothing is subtracted.
    """

    positive: int | str
    negative: int | str | None


@dataclass(frozen=True, slots=True)
class PairMessages:
    """Whether a pair of texts is put into the chat template, as messages of the roles `query` and `document`.

    `is_used`: None where the files leave it to the template. `variables`: those of the template that the files set.
    `in_parts`: whether the content of a message is a list of parts, as of images and texts; None: as the template
    reads it.
    """

    is_used: bool | None = None
    variables: Mapping[str, object] = field(default_factory=lambda: _WITHOUT_PROMPT, hash=False)
    in_parts: bool | None = None


def read_answers(file: Path) -> Answers:
    """Read the configuration of a LogitScore module. Raises InvalidModel."""
    config = read_json(file)
    positive, negative = config.get("true_token_id"), config.get("false_token_id")
    if not _is_id(positive) or not (negative is None or _is_id(negative)):
        raise InvalidModel(f"{file}: expected the token ids true_token_id and false_token_id, got others or none")
    assert isinstance(positive, int)
    return Answers(positive, negative)


def read_pair_messages(sentence: Mapping[str, Any], folder: Path, has_modules: bool) -> PairMessages:
    """Read the form of a pair. `sentence`: the content of `sentence_bert_config.json`. Raises InvalidModel.

    `has_modules`: sentence-transformers uses the chat template of such a folder only where the content says so.
    """
    modalities, options = sentence.get("modality_config"), sentence.get("processing_kwargs") or {}
    if not isinstance(modalities, dict):
        return PairMessages(False if has_modules else None)
    message = modalities.get("message")
    if message is None:
        return PairMessages(False)
    message_format = message.get("format", "auto") if isinstance(message, dict) else message
    if message_format not in ("auto", "flat", "structured"):
        raise InvalidModel(
            f'{folder}: modality_config: expected messages of the format "flat", "structured" or "auto", '
            f"got {str(message_format)[:100]}; correct it"
        )
    in_parts = None if message_format == "auto" else message_format == "structured"
    return PairMessages(True, {**_WITHOUT_PROMPT, **_template_variables(options, folder)}, in_parts)


def _template_variables(options: object, folder: Path) -> Mapping[str, object]:
    """Return the variables of the template among `processing_kwargs`. Raises InvalidModel for other settings."""
    variables = options.get("chat_template") or {} if isinstance(options, dict) else None
    if not isinstance(variables, dict):
        raise InvalidModel(
            f"{folder}: processing_kwargs: expected chat_template with variables, got others; correct it"
        )
    unserved = sorted(_NOT_VARIABLES & variables.keys())
    if unserved:
        raise InvalidModel(
            f"{folder}: processing_kwargs: chat_template: expected variables of the template, got {unserved[0]}; "
            "remove it"
        )
    return variables


def has_chat_template(folder: Path) -> bool:
    """Whether a folder has a chat template. Raises InvalidModel for a damaged file."""
    in_config = read_json(folder / "tokenizer_config.json").get("chat_template") is not None
    return in_config or (folder / "chat_template.jinja").is_file()


def has_named_templates(folder: Path) -> bool:
    """Whether the folder names its chat templates, as those with one for tools do. Raises InvalidModel as above."""
    if any((folder / "additional_chat_templates").glob("*.jinja")):
        return True
    in_file = (folder / "chat_template.jinja").is_file()
    return not in_file and isinstance(read_json(folder / "tokenizer_config.json").get("chat_template"), list)


def _is_id(value: object) -> bool:
    return type(value) is int and value >= 0


_TORCH = "torch."
_SERVED = {"Identity": True, "Sigmoid": False}


def read_scores_are_logits(config: Mapping[str, Any], model: Mapping[str, Any], folder: Path) -> bool:
    """Whether the score of a pair is the logit itself; else a sigmoid is applied, as CrossEncoder does for one label.

    `config`, `model`: the contents of `config.json` and `config_sentence_transformers.json`, the latter of a folder
    with `modules.json`. Functions of other packages than torch have no effect: the library does not load them either.
    Raises InvalidModel for another function of torch.
    """
    for key, named in _stated(config, model).items():
        if isinstance(named, str) and named.startswith(_TORCH):
            served = _SERVED.get(named.rpartition(".")[2]) if named.startswith("torch.nn.") else None
            if served is None:
                raise InvalidModel(
                    f"{folder}: {key}: expected torch.nn.Identity or torch.nn.Sigmoid, got {named[:100]}; "
                    "serve a model with one of these"
                )
            return served
    return False


def _stated(config: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, object]:
    """Return the functions that the files name, by key, in the order in which the library reads them."""
    stated = {"activation_fn": model.get("activation_fn")}
    own = config.get("sentence_transformers")
    if isinstance(own, dict) and "activation_fn" in own:
        stated["sentence_transformers.activation_fn"] = own["activation_fn"]
    else:
        stated["sbert_ce_default_activation_function"] = config.get("sbert_ce_default_activation_function")
    return stated
