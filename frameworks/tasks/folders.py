"""Tell by config.json alone whether a folder may have a task, without torch and transformers."""

from pathlib import Path

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json

OWN_TASKS = frozenset({"embed", "classify", "generate"})
"""Tasks that other parts of the frameworks serve."""
OTHER_NAMES = {
    "feature-extraction": "embed",
    "image-feature-extraction": "embed",
    "sentence-similarity": "embed",
    "text-classification": "classify",
    "sentiment-analysis": "classify",
    "image-classification": "classify",
    "text-ranking": "classify",
    "text-generation": "generate",
    "ner": "token-classification",
}
"""Names that the hub has for tasks: other ones for those of the server."""

# Ends of the classes of transformers whose task a pipeline serves.
_ENDS = (
    "ForTokenClassification", "ForQuestionAnswering", "ForObjectDetection", "ForSegmentation",
    "ForSemanticSegmentation", "ForInstanceSegmentation", "ForUniversalSegmentation", "ForDepthEstimation",
    "ForVideoClassification", "ForAudioClassification", "ForKeypointMatching",
)  # fmt: skip
# Families whose classes for sequences read sound.
_AUDIO = ("wav2vec2", "unispeech", "hubert", "sew", "wavlm", "data2vec-audio", "whisper")
_CLASSIFIES = "ForSequenceClassification"


def may_have_task(folder: Path, named: str | None) -> bool:
    """Whether the class in config.json may have a task that a pipeline serves. `named`: the task of the entry."""
    if named is not None:
        return OTHER_NAMES.get(named, named) not in OWN_TASKS
    try:
        config = read_json(folder / "config.json")
    except InvalidModel:
        return False
    names = config.get("architectures")
    architecture = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    is_audio = str(config.get("model_type")).startswith(_AUDIO) and architecture.endswith(_CLASSIFIES)
    return architecture.endswith(_ENDS) or is_audio
