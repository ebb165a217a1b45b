"""Turn the options of `roundhouse run` into the columns that the model reads, and the options of its requests."""

import argparse
from pathlib import Path
from typing import Any

from extensions.offline.contract import RunModelDescription, WrongCommand
from extensions.offline.input.media_folder import COLUMN
from extensions.offline.requests import RowSource

_MATCHING = "keypoint-matching"
_FORBIDDEN = {
    "model_name",
    "version",
    "input_data",
    "inputs",
    "text",
    "image",
    "prompt",
    "messages",
    "stream",
    "n",
    "logprobs",
}


def source_of(options: argparse.Namespace, description: RunModelDescription) -> RowSource:
    """Return the columns that the model reads. Raises WrongCommand."""
    infer_options = _infer_options(options)
    root = options.file_root
    if root is not None and (options.file_column is None or not root.is_dir()):
        raise WrongCommand("--file-root: expected a folder, beside --file-column; correct the path or leave it out")
    if options.files or options.file_column is not None:
        column, root = (COLUMN, Path(options.input)) if options.files else (options.file_column, root)
        return RowSource(column, {}, _media_field(description), infer_options, root)
    is_tensor = bool(options.columns) and not description.reads
    field = "inputs" if is_tensor else "prompt" if description.task == "generate" else "text"
    return RowSource(options.column or "", _inputs(options.columns or ""), field, infer_options)


def _media_field(description: RunModelDescription) -> str:
    """Return the field of a request for files. Raises WrongCommand."""
    field = description.media
    if field is None:
        raise WrongCommand("MODEL: expected a model that reads files, got another; choose the rows with --column")
    if description.task == _MATCHING:
        raise WrongCommand(f"MODEL: {_MATCHING} reads two images for each row, which a run does not send; use /infer")
    return field


def _inputs(columns: str) -> dict[str, str]:
    """Return input name → column of `--columns a,b=column`."""
    pairs = (pair.partition("=") for pair in columns.split(",") if pair)
    return {name.strip(): (column or name).strip() for name, _, column in pairs}


def _infer_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of /infer besides the rows. The decoder of the server checks them. Raises WrongCommand."""
    chosen: dict[str, Any] = dict(options.options)
    for name in ("normalize", "truncate", "top_k"):
        if (value := getattr(options, name)) is not None:
            chosen[name] = value
    if options.outputs:
        chosen["outputs"] = [name.strip() for name in options.outputs.split(",")]
    forbidden = sorted(_FORBIDDEN & chosen.keys())
    if forbidden:
        raise WrongCommand(f"--options: expected options of one row, got {', '.join(forbidden)}; leave them out")
    return chosen
