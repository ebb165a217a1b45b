"""Write the encoder of a graph as a folder of transformers, in the cache of copies."""

import shutil
from functools import partial
from pathlib import Path

import structlog

from frameworks.core.errors import InvalidModel
from frameworks.core.files import description_folder, parse_json
from frameworks.core.progress import phase
from frameworks.onnx.quantization.original import Original
from frameworks.quantization.copies import QuantizedCopies
from frameworks.types import QuantizationReport

log = structlog.get_logger(__name__)

_DESCRIPTIONS = (".json", ".txt", ".jinja")
_MADE_BY = "encoder of a graph, 1"
_WEIGHTS = "model.safetensors"


def encoder_folder(original: Original, copies: QuantizedCopies) -> Path:
    """Return a folder with the weights of a graph as safetensors, and the files that describe the model.

    Raises InvalidModel for a graph that is not an encoder of transformers, and where `cache_dir` is not writable.
    """
    folder = description_folder(original.file)
    if not (folder / "config.json").is_file():
        raise not_compiled(original, "there is no config.json beside the graph")
    described = _descriptions(folder)
    sources = [original.file, *sorted(original.summary.external_files), *(folder / each for each in described)]
    made_by = f"{_MADE_BY}: {', '.join(map(str, described))}"
    copied, _ = copies.get(sources, "encoder", made_by, partial(_make, original, described))
    return copied


def not_compiled(original: Original, reason: str) -> InvalidModel:
    """Return the refusal of an entry whose graph has no compiled layers."""
    wanted = original.entry.kernels
    return InvalidModel(
        f'{original.file}: kernels: expected the graph of an encoder for "{wanted}", got another: {reason}; remove '
        "kernels"
    )


def _descriptions(folder: Path) -> list[Path]:
    """Return the files of configuration, tokenizer and modules, relative to their folder."""
    modules = parse_json(folder / "modules.json", absent=[])
    paths = {str(each.get("path")) for each in modules if isinstance(each, dict)} if isinstance(modules, list) else ()
    found = [each for each in folder.iterdir() if each.suffix in _DESCRIPTIONS]
    found += [file for part in folder.iterdir() if part.name in paths and part.is_dir() for file in part.iterdir()]
    return sorted(each.relative_to(folder) for each in found if each.is_file())


def _make(original: Original, described: list[Path], making: Path) -> QuantizationReport:
    # Imported here, as they take 0.15 s: a start that finds its copy needs none of it.
    from safetensors.numpy import save_file

    from frameworks.onnx.encoders.weights import NotAnEncoder, read_weights

    phase("copying the weights of the graph")
    try:
        state = read_weights(original.file, original.summary)
    except NotAnEncoder as error:
        raise not_compiled(original, str(error)) from error
    except OSError:
        raise
    except Exception as error:
        reason = str(error).replace("\n", " ").strip() or type(error).__name__
        raise not_compiled(original, f"onnx cannot read it: {reason[:500]}") from error
    for each in described:
        (making / each).parent.mkdir(exist_ok=True)
        shutil.copyfile(description_folder(original.file) / each, making / each)
    save_file({name: each.copy(order="C") for name, each in state.items()}, making / _WEIGHTS, {"format": "pt"})
    num_bytes = sum(each.nbytes for each in state.values())
    log.info("weights of a graph copied for compiled layers", model=original.entry.name, bytes=num_bytes)
    return QuantizationReport("float32", 1.0, 1.0, 1.0, original.bytes_before, num_bytes)
