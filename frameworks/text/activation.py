"""Read what a cross-encoder applies to its logits: sentence-transformers' `activation_fn`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frameworks.core.errors import InvalidModel

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
