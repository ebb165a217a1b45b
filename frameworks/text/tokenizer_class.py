"""Find the tokenizer class of a folder without importing transformers, and what the class decides.

Source: `AutoTokenizer.from_pretrained` and the tokenizer classes of transformers 5.
"""

from collections.abc import Mapping
from typing import Any

# transformers reads the folders of these families with its class for any tokenizer, whatever class the files name.
_FAMILIES_WITHOUT_CLASS = ("camembertv2-base", "modernbert", "modernbert-decoder", "nystromformer", "xlm-roberta-xl")
# Classes that return token types, with the families whose folders are read with them unless they name another.
_TYPED = {
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
_UNTYPED = {
    "AlbertTokenizer": ("albert", "yoso"),
    "BarthezTokenizer": ("barthez",),
    "BigBirdTokenizer": ("big_bird",),
    "BlenderbotTokenizer": ("blenderbot",),
    "CamembertTokenizer": ("camembert",),
    "FunnelTokenizer": ("funnel",),
    "GPT2Tokenizer": ("codegen", "gpt2", "gpt_neo", "gptj", "jais2", "opt", "phi", "starcoder2"),
    "GPTNeoXTokenizer": ("falcon_mamba", "gpt_neox", "mamba", "mamba2", "mpt", "olmo", "olmoe", "rwkv", "xlstm"),
    "LEDTokenizer": ("led",),
    "LayoutLMv3Tokenizer": ("layoutlmv3",),
    "LukeTokenizer": ("luke",),
    "MPNetTokenizer": ("mpnet",),
    "MvpTokenizer": ("mvp",),
    "RemBertTokenizer": ("rembert",),
    "RobertaTokenizer": (
        "bart", "bridgetower", "clap", "data2vec-text", "ibert", "lilt", "longformer", "mega", "mra", "roberta",
        "roberta-prelayernorm",
    ),
    "SplinterTokenizer": ("splinter",),
    "XGLMTokenizer": ("xglm",),
    "XLMRobertaTokenizer": ("gte", "jina_embeddings_v3", "metaclip_2", "trocr", "xlm-roberta", "xmod"),
    "XLNetTokenizer": ("xlnet",),
}  # fmt: skip
_CLASS_OF_FAMILY = {family: name for name, families in (_TYPED | _UNTYPED).items() for family in families}


def _names(*names: str) -> frozenset[str]:
    return frozenset(f"{name}Tokenizer" for name in names)


# Other names of BertTokenizer in transformers.
_OF_BERT = _names("ConvBert", "DPRContextEncoder", "Electra", "LayoutLM", "SqueezeBert")
_CLASSES_WITH_TYPES = _OF_BERT | _TYPED.keys()
BERT_NORMALIZED = _OF_BERT | _names(
    "Bert", "DPRQuestionEncoder", "DistilBert", "Funnel", "LayoutLMv2", "Lxmert", "MPNet", "MobileBert", "Splinter"
)
"""Classes that put BERT's normalizer in the place of that of tokenizer.json."""
BYTE_LEVEL = _names(
    "Bart", "Blenderbot", "Deberta", "GPT2", "GPTNeoX", "LED", "LayoutLMv3", "Longformer", "Luke", "MarkupLM", "Mvp",
    "Roberta",
)  # fmt: skip
"""Classes that split texts at bytes, and put a space before a text only if `add_prefix_space` says so."""


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
