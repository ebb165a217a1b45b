"""Convert the inputs of a request to what the pipeline of a task reads: pictures, samples of sound, frames, tables."""

from collections.abc import Callable
from typing import Any

import torch
from PIL import Image

from frameworks.core.errors import InvalidInput
from frameworks.images.decode import check_header, decode_rgb
from frameworks.media.audio import decode_audio
from frameworks.tasks.mask_prompts import check_prompts
from frameworks.tasks.speech_windows import check_windows

Input = dict[str, Any]
Parameters = dict[str, Any]


def pipeline_input(task: str, pipeline: Any, given: Input, parameters: Parameters) -> Any:
    """Return what `pipeline.preprocess` reads. Raises InvalidInput; its field is the member of the input."""
    convert = _CONVERT.get(task)
    if convert is not None:
        return convert(pipeline, given, parameters)
    return _picture(given["image"]) if "image" in given else given["text"]


def _picture(data: bytes, field: str = "image") -> Image.Image:
    return decode_rgb(data, check_header(data, field), field)


def _masked_text(pipeline: Any, given: Input, _: Parameters) -> Any:
    text, mask = given["text"], pipeline.tokenizer.mask_token
    if mask is not None and mask not in text:
        raise InvalidInput("text", f"expected a text with the mask token {mask}, got none")
    return text


def _question_and_context(_: Any, given: Input, __: Parameters) -> Input:
    return {"question": given["question"], "context": given["context"]}


def _question_and_document(_: Any, given: Input, __: Parameters) -> Input:
    words = [(word, box) for word, box in given["word_boxes"]]
    picture = _picture(given["image"]) if "image" in given else None
    return {"image": picture, "question": given["question"], "word_boxes": words}


def _image_and_labels(_: Any, given: Input, parameters: Parameters) -> Input:
    return {"image": _picture(given["image"]), "candidate_labels": parameters.pop("candidate_labels")}


def _query_and_table(_: Any, given: Input, __: Parameters) -> Input:
    # Few models need it; it is checked at load.
    import pandas

    return {"query": given["query"], "table": pandas.DataFrame(given["table"])}


def samples_of(pipeline: Any, given: Input, _: Parameters) -> Any:
    """Return samples at the rate of the model, float32 [samples]."""
    audio = given["audio"]
    return decode_audio(audio, pipeline.feature_extractor.sampling_rate, "audio") if isinstance(audio, bytes) else audio


def _speech(pipeline: Any, given: Input, parameters: Parameters) -> Any:
    """Return samples as `samples_of`, where the windows of the sound are bounded. Raises InvalidInput."""
    samples, rate = samples_of(pipeline, given, parameters), pipeline.feature_extractor.sampling_rate
    seconds = len(samples) / rate
    check_windows(seconds, parameters)
    if not parameters.pop("return_duration", False):
        return samples
    # The pipeline returns further members of its input beside the text.
    return {"raw": samples, "sampling_rate": rate, "duration": seconds}


def check_frames(model: Any, samples: torch.Tensor) -> None:
    """Raise InvalidInput for samples [1, samples] of which a model that reads waves makes no frame.

    Each of its convolutions needs as many values as its kernel has.
    """
    frames_of = getattr(model, "_get_feat_extract_output_lengths", None)
    if frames_of is None or samples.ndim != 2:
        return
    count = samples.shape[1]
    if frames_of(torch.tensor(count)) < max(1, getattr(model.config, "squeeze_factor", 1)):
        raise InvalidInput(
            "audio",
            f"expected a sound and a last window with samples for a frame of the model, got {count}; send a longer one",
        )


def _video(_: Any, given: Input, __: Parameters) -> Any:
    """Return the file: the pipeline knows how many frames it reads."""
    return given["video"]


def _two_pictures(_: Any, given: Input, __: Parameters) -> list[Image.Image]:
    return [_picture(data, f"image[{number}]") for number, data in enumerate(given["image"])]


def _picture_and_prompts(_: Any, given: Input, parameters: Parameters) -> Image.Image:
    """Return the picture; write its points and boxes into the parameters as the processor of the model reads them."""
    picture = _picture(given["image"])
    parameters |= check_prompts(parameters, picture.width, picture.height)
    return picture


_CONVERT: dict[str, Callable[[Any, Input, Parameters], Any]] = {
    "fill-mask": _masked_text,
    "question-answering": _question_and_context,
    "document-question-answering": _question_and_document,
    "zero-shot-object-detection": _image_and_labels,
    "keypoint-matching": _two_pictures,
    "mask-generation": _picture_and_prompts,
    "table-question-answering": _query_and_table,
    "audio-classification": samples_of,
    "automatic-speech-recognition": _speech,
    "zero-shot-audio-classification": samples_of,
    "video-classification": _video,
}
"""Task → its conversion. Other tasks read a picture or a text."""
