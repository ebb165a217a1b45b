"""Read tokenizer.json as a model's files want it read: with their special tokens, without padding and truncation."""

from pathlib import Path
from typing import TYPE_CHECKING

from frameworks.core.errors import InvalidModel
from frameworks.text.config import TextConfig
from frameworks.text.late_interaction import register_markers

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def read_tokenizer(folder: Path, config: TextConfig) -> "Tokenizer":
    """Return the tokenizer of a folder. Raises InvalidModel where tokenizer.json is absent or cannot be read."""
    from tokenizers import Tokenizer, normalizers, processors

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise InvalidModel(
            f"{file}: absent; a text model needs it beside its weights "
            "(transformers writes it with AutoTokenizer.from_pretrained(…).save_pretrained(folder))"
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise InvalidModel(f"{file}: not a tokenizer: {error}") from error
    # The file may contain the padding and truncation of the training; here only the model's limit applies.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    config.tokenizer_settings.apply(tokenizer)
    if config.late is not None:
        register_markers(tokenizer, config.late)
    if config.static is not None:
        # Static embeddings are the mean of a text's own tokens.
        tokenizer.post_processor = processors.TemplateProcessing("$A", "$A $B", [])
    if config.lower_case:
        # In the tokenizer, as in sentence-transformers: it applies to the prompt too, and keeps [MASK] in a text.
        steps = [normalizers.Lowercase(), tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([step for step in steps if step is not None])
    return tokenizer
