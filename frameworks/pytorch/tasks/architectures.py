"""Find the task of a folder by its class, as transformers' tables name the classes of each task."""

from functools import cache
from pathlib import Path

from transformers.models.auto import modeling_auto

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.images.spec import PREPROCESSOR_FILE
from frameworks.pytorch.weights import WeightFiles
from frameworks.tasks.folders import OTHER_NAMES, OWN_TASKS
from frameworks.tasks.table import TASKS

_TABLES: dict[str, tuple[str, ...]] = {
    "token-classification": ("TOKEN_CLASSIFICATION",),
    "document-question-answering": ("DOCUMENT_QUESTION_ANSWERING",),
    "question-answering": ("QUESTION_ANSWERING",),
    "table-question-answering": ("TABLE_QUESTION_ANSWERING",),
    "object-detection": ("OBJECT_DETECTION",),
    "image-segmentation": (
        "IMAGE_SEGMENTATION",
        "SEMANTIC_SEGMENTATION",
        "INSTANCE_SEGMENTATION",
        "UNIVERSAL_SEGMENTATION",
    ),
    "depth-estimation": ("DEPTH_ESTIMATION",),
    "zero-shot-object-detection": ("ZERO_SHOT_OBJECT_DETECTION",),
    "mask-generation": ("MASK_GENERATION",),
    "keypoint-matching": ("KEYPOINT_MATCHING",),
    "video-classification": ("VIDEO_CLASSIFICATION",),
    "audio-classification": ("AUDIO_CLASSIFICATION",),
    "zero-shot-image-classification": ("ZERO_SHOT_IMAGE_CLASSIFICATION",),
    "fill-mask": ("MASKED_LM",),
    "zero-shot-classification": ("SEQUENCE_CLASSIFICATION",),
}
"""Task → the tables of `transformers.models.auto` whose classes serve it. Of several tasks of a class the first one is
its default."""
_OTHER_CLASSES = {"zero-shot-audio-classification": ("ClapModel",)}
# Classes that embed, classify or generate unless the entry names the task.
_NAMED_ONLY = frozenset({"fill-mask", "zero-shot-classification"})
_TWO_TOWERS = frozenset({"CLIPModel", "SiglipModel"})
# Their processors need files or packages that a folder does not have, or their pipeline generates text.
_UNSERVED = frozenset({"VisionEncoderDecoderModel"})


@cache
def classes_by_task() -> dict[str, frozenset[str]]:
    """Return the names of the classes that serve each task."""
    found: dict[str, frozenset[str]] = {}
    for task, tables in _TABLES.items():
        names: set[str] = set()
        for table in tables:
            for value in getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES").values():
                names.update((value,) if isinstance(value, str) else value)
        found[task] = frozenset(names - _UNSERVED)
    return found | {task: frozenset(names) for task, names in _OTHER_CLASSES.items()}


def architecture_of(folder: Path) -> str:
    """Return the name of the class in config.json; empty where none is named."""
    names = read_json(folder / "config.json").get("architectures") if folder.is_dir() else None
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def find_task(folder: Path, named: str | None) -> str | None:
    """Return the task of a folder that a pipeline serves; None for one that embeds, classifies or generates.

    `named`: the task of the entry; None: the default of the class. Raises InvalidModel where the class does not serve
    it.
    """
    architecture = architecture_of(folder)
    served = [task for task, classes in classes_by_task().items() if task in TASKS and architecture in classes]
    if named is None:
        defaults = [task for task in served if task not in _NAMED_ONLY]
        if not defaults or architecture in _TWO_TOWERS or (folder / "modules.json").is_file():
            return None
        return defaults[0]
    named = OTHER_NAMES.get(named, named)
    if named in OWN_TASKS:
        return None
    if named not in served:
        able = ", ".join(served) or "no task that a pipeline serves"
        raise InvalidModel(
            f"{folder}: task: expected a task of {architecture or 'a class, but config.json names none'}, which are: "
            f'{able}; got "{named}"; correct it or remove it'
        )
    return named


_USUAL_SIDE = 512
_USUAL_TOKENS = 512
# The largest states of a run, in multiples of its input.
_STATES_PER_PIXEL = 12
_STATES_PER_TOKEN = 8


def task_bytes(folder: Path, weights: WeightFiles, rows: int, item_bytes: int) -> int:
    """Estimate what a model takes with a run of `rows`. `item_bytes`: of a number of its dtype."""
    config, processor = read_json(folder / "config.json"), read_json(folder / PREPROCESSOR_FILE)
    state_bytes = 0
    if processor:
        size = processor.get("size")
        sides = [side for side in size.values() if isinstance(side, int)] if isinstance(size, dict) else []
        side = max(sides, default=_USUAL_SIDE)
        # Pictures are seldom square, and their pixels wait on the host in float32.
        state_bytes = rows * 3 * side * side * 4 * _STATES_PER_PIXEL // 4
    hidden = config.get("hidden_size") or config.get("d_model") or 0
    if isinstance(hidden, int):
        state_bytes += rows * _USUAL_TOKENS * hidden * item_bytes * _STATES_PER_TOKEN
    return weights.elements * item_bytes + state_bytes
