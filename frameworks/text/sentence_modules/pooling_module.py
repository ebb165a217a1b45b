"""Read the Pooling module of sentence-transformers: its modes, and whether it pools the prompt."""

from typing import Literal

from frameworks.core.errors import InvalidModel
from frameworks.text.sentence_modules.modules import Module

Pooling = Literal["mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean"]

# In the order in which sentence-transformers concatenates them.
_FLAGS: dict[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def read_pooling(module: Module) -> str:
    """Return the modes of a pooling, joined by "+". Raises InvalidModel for modes that are not served."""
    file, config = module.config_file, module.config
    if not config:
        raise InvalidModel(f"{file}: absent or empty; modules.json names it as the configuration of the pooling")
    modes = config.get("pooling_mode") or [mode for flag, mode in _FLAGS.items() if config.get(flag)] or "mean"
    wanted = modes if isinstance(modes, list) else [modes]
    served = [mode for mode in wanted if isinstance(mode, str) and mode in _FLAGS.values()]
    if not 0 < len(served) == len(wanted) <= len(_FLAGS):
        raise InvalidModel(
            f"{file}: pooling {' + '.join(map(str, wanted))[:100]} is not served; {', '.join(_FLAGS.values())} are"
        )
    return "+".join(served)


def pools_prompt(module: Module) -> bool:
    """Return whether the tokens of the prompt are pooled too. Raises InvalidModel for another value than a boolean."""
    value = module.config.get("include_prompt")
    if value is not None and not isinstance(value, bool):
        raise InvalidModel(
            f"{module.config_file}: include_prompt: expected true or false, got {str(value)[:100]}; correct it"
        )
    return value is not False
