"""Know which tasks a class of transformers can do, by its name: config.json has it under `architectures`."""

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

_BY_NAME: dict[str, tuple[str, ...]] = {
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
