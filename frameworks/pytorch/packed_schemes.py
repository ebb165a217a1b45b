"""The quantization that a Hugging Face folder states in its config.json: GPTQ, AWQ, compressed-tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frameworks.core.errors import InvalidModel
from frameworks.core.files import read_json

_KEYS = ("quantization_config", "compression_config")
_METHODS = ("gptq", "awq", "compressed-tensors")
_BITS = (4, 8)
_ROW_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")
_COLUMN_FORMATS = {"gptq": ("gptq", "gptq_v2"), "awq": ("gemm",)}


def read_scheme(folder: Path) -> dict[str, Any] | None:
    """Return the quantization that config.json states, if it is one of those served; None for plain weights and for
    schemes of which transformers knows more.

    Raises InvalidModel for a variant that is not served.
    """
    file = folder / "config.json"
    config = read_json(file)
    found: dict[str, Any] | None = next((config[key] for key in _KEYS if isinstance(config.get(key), dict)), None)
    method = None if found is None else found.get("quant_method")
    if found is None or method not in _METHODS:
        return None
    if method == "compressed-tensors":
        form = found.get("format")
        if form not in _ROW_FORMATS:
            raise InvalidModel(
                f"{file}: format: expected one of {', '.join(_ROW_FORMATS)}, got {form}; use another copy"
            )
        return found
    form = str(found.get("checkpoint_format" if method == "gptq" else "version") or _COLUMN_FORMATS[method][0]).lower()
    bits = found.get("bits")
    if form not in _COLUMN_FORMATS[method]:
        wanted = " or ".join(_COLUMN_FORMATS[method])
        raise InvalidModel(f"{file}: {method}: expected the layout {wanted}, got {form}; use another copy")
    if bits not in _BITS or (method == "awq" and bits != _BITS[0]):
        raise InvalidModel(
            f"{file}: bits: expected 4{' or 8' if method == 'gptq' else ''}, got {bits}; use another copy"
        )
    return found


def stated_bits(scheme: Mapping[str, Any]) -> int:
    """Return the bits of most weights: 4 or 8."""
    groups = scheme.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    found = weights.get("num_bits") if isinstance(weights, dict) else scheme.get("bits")
    return found if found in _BITS else _BITS[0]
