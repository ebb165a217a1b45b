"""Read the weights of a module of sentence-transformers as float32 arrays: safetensors, or pickles that are allowed."""

from collections.abc import Mapping

import numpy as np

from frameworks.core.errors import InvalidModel
from frameworks.text.pickled_tensors import PICKLE, read_pickled_tensors
from frameworks.text.sentence_modules.modules import Module
from frameworks.types import Array
from memory.sizes import format_size

_SAFETENSORS = "model.safetensors"
_MAX_BYTES = 2 * 1024**3
"""Maximum size of a module's file."""


def weight_bytes(module: Module) -> int:
    """Return the size of a module's file of weights; 0 where it has none."""
    files = (module.folder / name for name in (_SAFETENSORS, PICKLE))
    return next((file.stat().st_size for file in files if file.is_file()), 0)


def read_weights(module: Module, allow_pickled: bool = False) -> Mapping[str, Array]:
    """Return the tensors of a module by name.

    `allow_pickled`: read `pytorch_model.bin` where there is no `model.safetensors`. Raises InvalidModel.
    """
    size = weight_bytes(module)
    if size > _MAX_BYTES:
        raise InvalidModel(
            f"{module.folder}: expected at most {format_size(_MAX_BYTES)} of weights of a module, "
            f"got {format_size(size)}; serve a smaller model"
        )
    if (module.folder / _SAFETENSORS).is_file():
        return _read_safetensors(module)
    if not (module.folder / PICKLE).is_file():
        raise InvalidModel(f"{module.folder}: expected {_SAFETENSORS}, got none; check that the copy is complete")
    if not allow_pickled:
        raise InvalidModel(
            f"{module.folder / PICKLE}: expected {_SAFETENSORS}, got a pickle; convert it where you trust it, with "
            "SentenceTransformer(folder).save(new_folder), or set allow_pickled_weights = true for this model"
        )
    return _read_pickle(module)


def checked_tensor(module: Module, tensors: Mapping[str, Array], name: str, shape: tuple[int, ...]) -> Array:
    """Return a tensor of a module. Raises InvalidModel where it is absent, or has another shape."""
    found = tensors.get(name)
    if found is None or found.shape != shape:
        got = "none" if found is None else str([*found.shape])
        raise InvalidModel(
            f"{module.folder}: {name}: expected a tensor {[*shape]}, got {got}; check that the copy is complete"
        )
    return found


def _read_safetensors(module: Module) -> dict[str, Array]:
    # A server of ONNX graphs without such modules does not load it.
    from safetensors import SafetensorError, safe_open

    file = module.folder / _SAFETENSORS
    try:
        with safe_open(str(file), framework="numpy") as tensors:
            names = [*tensors.keys()]
            if any(tensors.get_slice(name).get_dtype() == "BF16" for name in names):
                # Its import tells numpy of bfloat16.
                import ml_dtypes  # noqa: F401
            return {name: np.asarray(tensors.get_tensor(name), dtype=np.float32) for name in names}
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise InvalidModel(
            f"{file}: not a readable safetensors file ({error}); check that the copy is complete"
        ) from error


def _read_pickle(module: Module) -> dict[str, Array]:
    tensors = read_pickled_tensors(module.folder / PICKLE)
    return {name: np.array(tensor.float().numpy()) for name, tensor in tensors.items()}
