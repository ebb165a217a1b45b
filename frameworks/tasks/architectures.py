"""Know which tasks a class of transformers can do, by its name: config.json has it under `architectures`."""

from pathlib import Path

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.tasks.table import TASKS

_BY_SUFFIX: dict[str, tuple[str, ...]] = {
    "ForSequenceClassification": ("text-classification", "zero-shot-classification"),
    "ForTokenClassification": ("token-classification",),
    "ForQuestionAnswering": ("question-answering",),
    "ForQuestionAnsweringSimple": ("question-answering",),
    "ForMaskedLM": ("feature-extraction", "fill-mask"),
    "ForImageClassification": ("image-classification",),
    "ForImageClassificationWithTeacher": ("image-classification",),
    "ForImageClassificationLearned": ("image-classification",),
    "ForImageClassificationFourier": ("image-classification",),
    "ForImageClassificationConvProcessing": ("image-classification",),
    "ForObjectDetection": ("object-detection",),
    "ForSegmentation": ("image-segmentation",),
    "ForSemanticSegmentation": ("image-segmentation",),
    "ForInstanceSegmentation": ("image-segmentation",),
    "ForUniversalSegmentation": ("image-segmentation",),
    "ForDepthEstimation": ("depth-estimation",),
    "ForKeypointMatching": ("keypoint-matching",),
    "ForVideoClassification": ("video-classification",),
    "ForAudioClassification": ("audio-classification",),
    "ForCTC": ("automatic-speech-recognition",),
    "Model": ("feature-extraction",),
}

_BY_TASK: dict[str, tuple[str, ...]] = {
    "table-question-answering": ("TapasForQuestionAnswering",),
    "document-question-answering": (
        "LayoutLMForQuestionAnswering",
        "LayoutLMv2ForQuestionAnswering",
        "LayoutLMv3ForQuestionAnswering",
    ),
    "zero-shot-object-detection": (
        "GroundingDinoForObjectDetection",
        "MMGroundingDinoForObjectDetection",
        "OmDetTurboForObjectDetection",
        "Owlv2ForObjectDetection",
        "OwlViTForObjectDetection",
    ),
    "zero-shot-image-classification": (
        "AlignModel",
        "AltCLIPModel",
        "Blip2ForImageTextRetrieval",
        "BlipModel",
        "CLIPModel",
        "CLIPSegModel",
        "ChineseCLIPModel",
        "MetaClip2Model",
        "Siglip2Model",
        "SiglipModel",
        "Tipsv2Model",
        "VideoPrismClipModel",
    ),
    "zero-shot-audio-classification": ("ClapModel",),
    "text-to-audio": ("VitsModel",),
    "mask-generation": ("EdgeTamModel", "Sam2Model", "Sam3TrackerModel", "SamHQModel", "SamModel"),
    "audio-classification": (
        "Data2VecAudioForSequenceClassification",
        "HubertForSequenceClassification",
        "SEWDForSequenceClassification",
        "SEWForSequenceClassification",
        "UniSpeechForSequenceClassification",
        "UniSpeechSatForSequenceClassification",
        "Wav2Vec2BertForSequenceClassification",
        "Wav2Vec2ConformerForSequenceClassification",
        "Wav2Vec2ForSequenceClassification",
        "WavLMForSequenceClassification",
    ),
}

SPEECH_DECODERS = frozenset({"WhisperForConditionalGeneration"})
"""Classes that read a sound with an encoder, and write its text with a decoder, in steps as of a generating model."""

_BY_NAME: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(SPEECH_DECODERS, ("automatic-speech-recognition",)),
    **{name: (task,) for task, names in _BY_TASK.items() for name in names},
    "FlaubertWithLMHeadModel": _BY_SUFFIX["ForMaskedLM"],
    "XLMWithLMHeadModel": _BY_SUFFIX["ForMaskedLM"],
}

_BY_LENGTH = sorted(_BY_SUFFIX, key=len, reverse=True)


def tasks_of(architecture: str) -> tuple[str, ...]:
    """Return the tasks that a class can do, the usual one first; none for a class that no task serves.

    A class that generates, such as `BartForConditionalGeneration`, has none here.
    """
    if architecture in _BY_NAME:
        return _BY_NAME[architecture]
    suffix = next((each for each in _BY_LENGTH if architecture.endswith(each)), None)
    if suffix is None or architecture.endswith(("LMHeadModel", "EncoderDecoderModel")):
        return ()
    return _BY_SUFFIX[suffix]


OWN_TASKS = frozenset({"embed", "classify", "generate"})
"""Tasks that other parts of the frameworks serve, without a pipeline."""
_OF_ENCODER_DECODERS = ("summarization", "text2text-generation", "translation")
"""Tasks of models that generate with an encoder and a decoder."""
OTHER_NAMES: dict[str, str] = {
    "feature-extraction": "embed",
    "image-feature-extraction": "embed",
    "sentence-similarity": "embed",
    "text-classification": "classify",
    "sentiment-analysis": "classify",
    "image-classification": "classify",
    "text-ranking": "classify",
    "text-generation": "generate",
    **dict.fromkeys(_OF_ENCODER_DECODERS, "generate"),
    "ner": "token-classification",
    "text-to-speech": "text-to-audio",
}
"""Names that the hub has for tasks: other ones for those of the server."""
SERVED = f"the tasks served are {', '.join(sorted((*TASKS, *_OF_ENCODER_DECODERS)))}, and text-generation"
"""For the error of a class that no task serves."""
_NEEDS_TORCHVISION = (
    "transformers prepares its images with torchvision only, which the server does not use; serve a SamModel or "
    "SamHQModel, as of facebook/sam-vit-base"
)
NOT_SERVED: dict[str, str] = dict.fromkeys(
    (
        "EdgeTamModel",
        "EdgeTamVideoModel",
        "Sam2Model",
        "Sam2VideoModel",
        "Sam3LiteTextModel",
        "Sam3Model",
        "Sam3TrackerModel",
        "Sam3TrackerVideoModel",
        "Sam3VideoModel",
    ),
    _NEEDS_TORCHVISION,
) | dict.fromkeys(
    (
        "BarkModel",
        "CsmForConditionalGeneration",
        "DiaForConditionalGeneration",
        "FastSpeech2ConformerModel",
        "FastSpeech2ConformerWithHifiGan",
        "GradiumPhononTTSForConditionalGeneration",
        "HiggsAudioV2ForConditionalGeneration",
        "MusicgenForConditionalGeneration",
        "MusicgenMelodyForConditionalGeneration",
        "PocketTTSForConditionalGeneration",
        "SeamlessM4TForTextToSpeech",
        "SeamlessM4Tv2ForTextToSpeech",
        "SpeechT5ForTextToSpeech",
        "SpeechT5HifiGan",
        "VibeVoiceForConditionalGeneration",
    ),
    "text-to-audio is served for VitsModel only; serve one, as of facebook/mms-tts-eng",
)
"""Classes that are refused by name at load, with the reason."""
# They embed images and texts unless the entry names the task.
_TWO_TOWERS = frozenset({"CLIPModel", "SiglipModel"})


def architecture_of(folder: Path) -> str:
    """Return the name of the class in config.json; empty where none is named. Raises InvalidModel."""
    names = read_json(folder / "config.json").get("architectures") if folder.is_dir() else None
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def find_task(folder: Path, named: str | None) -> str | None:
    """Return the task of a folder that a pipeline serves; None for one that embeds, classifies or generates, also texts
    of speech.

    `named`: the task of the entry; None: the usual one of the class. Raises InvalidModel where the class does not serve
    it.
    """
    architecture = architecture_of(folder)
    if architecture in NOT_SERVED:
        raise InvalidModel(f"{folder}: {architecture}: {NOT_SERVED[architecture]}")
    served = [OTHER_NAMES.get(task, task) for task in tasks_of(architecture)]
    if named is None:
        is_embedder = architecture in _TWO_TOWERS or (folder / "modules.json").is_file()
        task = None if not served or is_embedder or served[0] in OWN_TASKS else served[0]
    else:
        task = OTHER_NAMES.get(named, named)
        if task in OWN_TASKS:
            return None
        if task not in served:
            able = ", ".join(served) or "none that is served"
            raise InvalidModel(
                f"{folder}: task: expected a task of {architecture or 'a class, but config.json names none'}, which "
                f'are: {able}; got "{named}"; correct it or remove it'
            )
    return None if architecture in SPEECH_DECODERS else task
