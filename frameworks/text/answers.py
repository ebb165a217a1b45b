"""Read how a language model scores pairs of texts: sentence-transformers' LogitScore module, and the form of a pair."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frameworks.errors import InvalidModel
from frameworks.files import read_json

# Of the variables of a chat template, those that say how the answer begins.
_TEMPLATE_VARIABLES = ("add_generation_prompt", "enable_thinking")


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
    """

    is_used: bool | None = None
    variables: Mapping[str, bool] = field(default_factory=dict, hash=False)


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
    if isinstance(message, dict) and message.get("format") == "structured":
        raise InvalidModel(f'{folder}: modality_config: expected messages of the format "flat", got "structured"')
    variables = options.get("chat_template", {}) if isinstance(options, dict) else None
    if not isinstance(variables, dict) or set(options) - {"chat_template"}:
        raise InvalidModel(f"{folder}: processing_kwargs: expected only chat_template, got others; remove them")
    unserved = [name for name, value in variables.items() if name not in _TEMPLATE_VARIABLES or type(value) is not bool]
    if unserved:
        raise InvalidModel(
            f"{folder}: processing_kwargs: chat_template: expected true or false for "
            f"{' and '.join(_TEMPLATE_VARIABLES)}, got {unserved[0]}; remove it"
        )
    return PairMessages(True, {"add_generation_prompt": False} | variables)


def has_chat_template(folder: Path) -> bool:
    """Whether a folder has a chat template. Raises InvalidModel for a damaged file."""
    in_config = read_json(folder / "tokenizer_config.json").get("chat_template") is not None
    return in_config or (folder / "chat_template.jinja").is_file()


def _is_id(value: object) -> bool:
    return type(value) is int and value >= 0
