"""Bounds of the images and videos of a request, checked before any is decoded."""

from collections.abc import Sequence

from frameworks.core.errors import InvalidInput
from frameworks.generation.types import MessageImage, VisionSpec
from frameworks.images.decode import ImageBounds, check_header


def check_images(images: Sequence[MessageImage], bounds: VisionSpec, field: str = "messages") -> list[tuple[int, int]]:
    """Return the height and width of each image, by its header. Videos are not read. `field`: of all files together.

    Raises InvalidInput beyond the bounds, and for a video that the model does not read.
    """
    if len(images) > bounds.max_images:
        raise InvalidInput(
            field,
            f"expected at most {bounds.max_images} images, got {len(images)}; send fewer, or raise max_images of "
            "the model",
        )
    video = next((each for each in images if each.is_video), None)
    if video is not None and bounds.no_videos_because is not None:
        raise InvalidInput(
            video.field,
            f"expected images, as the model reads no videos ({bounds.no_videos_because}), got one; send its frames as "
            "images, or name another model",
        )
    limit = ImageBounds(max_pixels=bounds.max_image_pixels)
    headers = [check_header(each.data, each.field, limit) for each in images if not each.is_video]
    return [(header.height, header.width) for header in headers]
