"""Turn the options of `roundhouse run` into a job: the columns that the model reads, and the options of requests."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from extensions.offline.contract import RunModelDescription, WrongCommand
from extensions.offline.conversation_images import MESSAGES
from extensions.offline.conversations import IMAGE_MEMBERS, PROMPT
from extensions.offline.input.files import InputFile, find_files
from extensions.offline.input.media_folder import COLUMN, find_media
from extensions.offline.job import WINDOW_ROWS, RunJob
from extensions.offline.media import WINDOW_ROWS as FILE_WINDOW_ROWS
from extensions.offline.output.into import Into
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


def job_of(options: argparse.Namespace, description: RunModelDescription, into: Into | None) -> RunJob:
    """Return the job of a command. Raises WrongCommand."""
    source = _source_of(options, description)
    window = options.window or (FILE_WINDOW_ROWS if source.may_read_files else WINDOW_ROWS)
    if window < 1 or options.window == 0:
        raise WrongCommand(f"--window: expected 1 or more, got {options.window}")
    output = options.output
    files: list[InputFile]
    files = (
        [find_media(options.input, output, source.field)]
        if options.files
        else find_files(options.input, output, options.format)
    )
    source = replace(source, folders=tuple(file.path.absolute().parent for file in files))
    parts = output.with_name(output.name + ".parts")
    return RunJob(files, parts, source, options.errors, options.prefix, options.restart, window, into)


def _source_of(options: argparse.Namespace, description: RunModelDescription) -> RowSource:
    """Return the columns that the model reads. Raises WrongCommand."""
    infer_options = _infer_options(options)
    root = options.file_root
    if options.columns and description.task == "generate":
        return _language_source(_inputs(options.columns), infer_options, root, description)
    _check_root(root, has_paths=options.file_column is not None)
    if options.files or options.file_column is not None:
        column, root = (COLUMN, Path(options.input)) if options.files else (options.file_column, root)
        return RowSource(column, {}, _media_field(description), infer_options, root)
    is_tensor = bool(options.columns) and not description.reads
    field = "inputs" if is_tensor else PROMPT if description.task == "generate" else "text"
    return RowSource(options.column or "", _inputs(options.columns or ""), field, infer_options)


def _check_root(root: Path | None, has_paths: bool) -> None:
    """Raise WrongCommand for --file-root without rows that may have paths, and for a path that is no folder."""
    if root is not None and not (has_paths and root.is_dir()):
        raise WrongCommand(
            "--file-root: expected a folder, beside --file-column, or beside --columns with messages or images; "
            "correct the path or leave it out"
        )


def _language_source(
    inputs: dict[str, str], infer_options: dict[str, Any], root: Path | None, description: RunModelDescription
) -> RowSource:
    """Return the columns of conversations, or that of prompts. `inputs`: member → column. Raises WrongCommand."""
    known = (MESSAGES, PROMPT, *IMAGE_MEMBERS)
    unknown = next((name for name in inputs if name not in known), None)
    if unknown is not None:
        raise WrongCommand(f'--columns: expected {", ".join(known)}, got "{unknown}"; say {MESSAGES}=COLUMN')
    images = [name for name in IMAGE_MEMBERS if name in inputs]
    if len(inputs) > 1 and MESSAGES in inputs:
        others = ", ".join(name for name in inputs if name != MESSAGES)
        raise WrongCommand(f"--columns: expected {MESSAGES} alone, got {others} too; leave one of them out")
    if len(images) > 1 or inputs.keys().isdisjoint((MESSAGES, PROMPT)):
        got = ", ".join(inputs) or "none"
        raise WrongCommand(f"--columns: expected {PROMPT} and one of {', '.join(IMAGE_MEMBERS)}, got {got}; correct it")
    if images and not description.max_images:
        raise WrongCommand(f"MODEL: expected a model that reads images, got another; leave {images[0]} out")
    _check_root(root, has_paths=bool(images) or MESSAGES in inputs)
    if list(inputs) == [PROMPT]:
        return RowSource(inputs[PROMPT], {}, PROMPT, infer_options)
    return RowSource("", inputs, MESSAGES, infer_options, root)


def _media_field(description: RunModelDescription) -> str:
    """Return the field of a request for files. Raises WrongCommand."""
    field = description.media
    if field is None:
        hint = "--columns prompt,image" if description.max_images else "--column"
        raise WrongCommand(f"MODEL: expected a model that reads files, got another; choose the rows with {hint}")
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
