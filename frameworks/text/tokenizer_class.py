"""Find the tokenizer class of a folder without importing transformers, and what the class decides.

Source: `AutoTokenizer.from_pretrained` and the tokenizer classes of transformers 5.
"""

from collections.abc import Mapping
from typing import Any

# transformers reads the folders of these families with its class for any tokenizer, whatever class the files name.
_FAMILIES_WITHOUT_CLASS = ("camembertv2-base", "modernbert", "modernbert-decoder", "nystromformer", "xlm-roberta-xl")
_CLASSES_OF_FAMILIES = {
    "BertTokenizer": (
        "align", "bark", "bert", "blip", "bros", "chinese_clip", "convbert", "distilbert", "electra", "ernie", "flava",
        "git", "grounding-dino", "layoutlm", "megatron-bert", "mm-grounding-dino", "nezha", "nomic_bert", "qdqbert",
        "realm", "retribert", "squeezebert", "tvp", "vilt", "visual_bert",
    ),
    "CanineTokenizer": ("canine",),
    "DPRQuestionEncoderTokenizer": ("dpr",),
    "DebertaTokenizer": ("deberta",),
    "DebertaV2Tokenizer": ("deberta-v2",),
    "FNetTokenizer": ("fnet",),
    "LayoutLMv2Tokenizer": ("layoutlmv2",),
    "LxmertTokenizer": ("lxmert",),
    "MarkupLMTokenizer": ("markuplm",),
    "MobileBertTokenizer": ("mobilebert",),
    "TapasTokenizer": ("tapas",),
}  # fmt: skip
_CLASS_OF_FAMILY = {family: name for name, families in _CLASSES_OF_FAMILIES.items() for family in families}
# Other names of BertTokenizer in transformers.
_OF_BERT = ("ConvBert", "DPRContextEncoder", "Electra", "LayoutLM", "SqueezeBert")
_CLASSES_WITH_TYPES = frozenset([*_CLASSES_OF_FAMILIES, *(f"{name}Tokenizer" for name in _OF_BERT)])


def tokenizer_class_of(config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> str:
    """Return the name of the class without `Fast`; an empty string for transformers' class for any tokenizer.

    `config`, `tokenizer`: the contents of `config.json` and `tokenizer_config.json`.
    """
    family = config.get("model_type")
    if family in _FAMILIES_WITHOUT_CLASS:
        return ""
    named = tokenizer.get("tokenizer_class") or config.get("tokenizer_class")
    if isinstance(named, str):
        return "" if named.startswith("PreTrained") else named.removesuffix("Fast")
    return _CLASS_OF_FAMILY.get(str(family), "")


def gives_token_types(config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> bool:
    """Whether the tokenizer returns token types: by `model_input_names`, else by its class.

    True where the files state neither a class nor a family: then the model's inputs decide.
    """
    names = tokenizer.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    if not any((config.get("model_type"), config.get("tokenizer_class"), tokenizer.get("tokenizer_class"))):
        return True
    return tokenizer_class_of(config, tokenizer) in _CLASSES_WITH_TYPES
