"""Convert the predictions of a pipeline to JSON values: pictures and masks to PNG, tensors to arrays."""

from base64 import b64encode
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from PIL import Image


def as_json(prediction: Any) -> Any:
    """Return a prediction as JSON values and arrays. A picture becomes a PNG in base64, as does a mask of booleans."""
    if isinstance(prediction, str | bool | int | float | None):
        return prediction
    if isinstance(prediction, Mapping):
        return {str(name): as_json(value) for name, value in prediction.items()}
    if isinstance(prediction, Image.Image):
        return _png(prediction)
    if isinstance(prediction, torch.Tensor):
        prediction = prediction.detach().float().cpu().numpy() if prediction.is_floating_point() else prediction.numpy()
    if isinstance(prediction, np.ndarray):
        if prediction.dtype == bool and prediction.ndim == 2:
            return _png(Image.fromarray(prediction.astype(np.uint8) * 255))
        return prediction.item() if not prediction.ndim else prediction
    if isinstance(prediction, np.generic):
        return prediction.item()
    if isinstance(prediction, list | tuple | set):
        return [as_json(value) for value in prediction]
    raise TypeError(f"no JSON form for {type(prediction).__name__}")


def _png(picture: Image.Image) -> str:
    file = BytesIO()
    # Masks have few colours: a higher level takes longer and saves little.
    picture.save(file, "PNG", compress_level=1)
    return b64encode(file.getvalue()).decode("ascii")
