"""List the makers of the first part of the model types that read images, and those without one."""

from collections.abc import Callable
from pathlib import Path

from tests.support.models.vision import gemma, idefics, llava, qwen_vl

MAKERS: dict[str, Callable[[Path], None]] = {
    **qwen_vl.MAKERS,
    **gemma.MAKERS,
    **llava.MAKERS,
    **idefics.MAKERS,
}
"""Model type to the function that writes its folder."""
MAX_IMAGES: dict[str, int] = {}
"""Model types that read only so many images."""
NEEDS_IMAGE: frozenset[str] = frozenset()
"""Model types that read no text without an image."""
NOT_BUILT: dict[str, str] = {}
"""Model type to the reason."""
