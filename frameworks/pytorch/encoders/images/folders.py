"""Recognise Hugging Face folders of models that read images, and estimate what their runs take."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json
from frameworks.images.spec import PREPROCESSOR_FILE
from frameworks.pytorch.encoders.images.families import EMBEDDERS, reason_not_served

if TYPE_CHECKING:
    from frameworks.images.processor import ImageProcessor

Kind = Literal["classify", "embed", "two towers"]
"""`two towers`: images and texts are embedded in one space."""

_CLASSIFIES = "ForImageClassification"
_TWO_TOWERS = ("clip", "siglip")
# The largest states of a run, without the pixels of an image, in multiples of their float32.
_STATES_PER_PIXEL = 12


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """A model that reads images. `architecture`: its class, as config.json names it."""

    folder: Path
    kind: Kind
    model_type: str
    architecture: str

    def processor(self) -> "ImageProcessor":
        """Return what prepares its images. Raises InvalidModel."""
        # A server without images needs none of it.
        from frameworks.images.reference import open_processor

        processor = open_processor(self.folder, self.model_type)
        if processor is None:
            raise InvalidModel(
                f"{self.folder / PREPROCESSOR_FILE}: absent; a model of images needs it beside its weights "
                "(transformers writes it with AutoImageProcessor.from_pretrained(…).save_pretrained(folder))"
            )
        return processor

    def state_bytes(self, rows: int) -> int:
        """Return about what a run of so many images takes beside the weights. Raises InvalidModel."""
        return rows * self.processor().row_bytes * _STATES_PER_PIXEL


def find_images(folder: Path) -> ImageFolder | None:
    """Return the model of images in a folder, None for another model.

    Raises InvalidModel for a broken config.json, and for a model of images that is not served.
    """
    config = read_json(folder / "config.json")
    names = config.get("architectures") or [""]
    architecture = names[0] if isinstance(names, list) and isinstance(names[0], str) else ""
    model_type = str(config.get("model_type") or "")
    if _CLASSIFIES in architecture:
        reason = reason_not_served(model_type)
        if reason is not None:
            raise InvalidModel(f"{folder}: {architecture} is not served: {reason}; choose another classifier")
        return ImageFolder(folder, "classify", model_type, architecture)
    # A class with a head, such as that of a segmentation, is no embedding model.
    if "For" not in architecture:
        if model_type in _TWO_TOWERS:
            tower: Kind = "embed" if "Vision" in architecture else "two towers"
            return ImageFolder(folder, tower, model_type, architecture)
        if model_type in EMBEDDERS:
            return ImageFolder(folder, "embed", model_type, architecture)
    if (folder / PREPROCESSOR_FILE).is_file() and not (folder / "tokenizer.json").is_file():
        raise _refused(folder, architecture or model_type or "none")
    return None


def _refused(folder: Path, found: str) -> InvalidModel:
    """Return the error of a class of images that is not served."""
    return InvalidModel(
        f"{folder}: expected a class that ends in {_CLASSIFIES}, or a class …Model of "
        f"{', '.join((*_TWO_TOWERS, *EMBEDDERS))}, got {found}; export it to ONNX"
    )
