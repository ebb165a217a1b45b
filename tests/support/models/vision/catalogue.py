"""List all model types of transformers that read images and write text, with the makers of tiny ones."""

from collections.abc import Callable
from pathlib import Path

from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from tests.support.models.vision import catalogue_a, catalogue_b

MODEL_TYPES: dict[str, str] = dict(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
"""Model type to the class that generates."""
MAKERS: dict[str, Callable[[Path], None]] = catalogue_a.MAKERS | catalogue_b.MAKERS
"""Model type to the function that writes its folder."""
NEEDS_IMAGE = catalogue_a.NEEDS_IMAGE | catalogue_b.NEEDS_IMAGE
"""Model types that read no text without an image."""
NOT_BUILT = catalogue_a.NOT_BUILT | catalogue_b.NOT_BUILT
"""Model type to the reason."""
