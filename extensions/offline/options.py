"""Run a model over files: `roundhouse run MODEL INPUT OUTPUT`."""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.parser import INTERRUPTED, INTERRUPTED_STATUS, add_command, config_file, server_url
from extensions.offline.ray_options import add_ray_options, cluster_of, open_on_ray
from frameworks.core.extras import install_command

if TYPE_CHECKING:
    from app.config import ConfigError, LoadedSettings, Settings
    from extensions.offline.contract import RunModel
    from extensions.offline.job import RunJob, RunResult
    from extensions.offline.output.into import Into
    from extensions.offline.served_model import ServerModel
    from extensions.offline.windows import WindowsRunner

BAD_ROWS_STATUS = 3
"""The exit status of a run that is complete, with bad rows in the file of --errors."""
_MAX_NAMES = 10


def add_run(commands: Any) -> None:
    """Add `roundhouse run`."""
    run = add_command(
        commands,
        "run",
        "Run a model over Parquet, CSV or JSON Lines files. The same command resumes an interrupted run.",
        "roundhouse run ./models/minilm-onnx texts.parquet embeddings.parquet --column text\n"
        "  roundhouse run ./models/digits images.parquet results.parquet --columns image=pixels\n"
        "  roundhouse run ./models/shapes ./photos labels.csv --files --top-k 3\n"
        "  roundhouse run ./answers questions.csv answers.jsonl --columns question,context=text\n"
        "  roundhouse run ./models/tiny-vision photos.csv answers.jsonl --columns prompt,image\n"
        "  roundhouse run minilm texts.csv embeddings.parquet --column text --url http://127.0.0.1:8080\n"
        "  roundhouse run minilm texts.csv embeddings.parquet --column text --url http://127.0.0.1:8080 --into docs "
        "--id key\n"
        "  roundhouse run ./models/minilm texts.parquet embeddings.parquet --column text --ray auto",
    )
    run.add_argument(
        "model", metavar="MODEL", help="path or address as for serve, or a name in the file of --config or at --url"
    )
    run.add_argument("input", metavar="INPUT", help="a .parquet, .csv or .jsonl file, a folder, or a glob in quotes")
    run.add_argument("output", type=Path, metavar="OUTPUT", help="a file; for several input files a folder")
    rows = run.add_mutually_exclusive_group(required=True)
    rows.add_argument("--column", metavar="NAME", help="the texts, or the prompts of a language model")
    rows.add_argument(
        "--files", "--images", action="store_true", help="INPUT is a folder of images, sounds or videos, a row each"
    )
    rows.add_argument(
        "--file-column", "--image-column", metavar="NAME", help="files: bytes, base64 or data URLs; or paths"
    )
    rows.add_argument(
        "--columns",
        metavar="NAMES",
        help="comma-separated INPUT=COLUMN, or equal names alone: tensors; members such as question and context; "
        "messages, or prompt and image, of a language model",
    )
    run.add_argument(
        "--file-root",
        "--image-root",
        type=Path,
        metavar="FOLDER",
        help="the paths are of files in this folder; with --columns messages or image the default is that of INPUT",
    )
    run.add_argument("--outputs", metavar="NAMES", help="only these outputs of a tensor model, comma-separated")
    run.add_argument(
        "--normalize", action=argparse.BooleanOptionalAction, help="embed: default as the model's files say"
    )
    run.add_argument("--truncate", action=argparse.BooleanOptionalAction, help="truncate long texts; default: yes")
    run.add_argument("--top-k", type=int, metavar="N", help="classify: the number of labels; default: all")
    run.add_argument(
        "--options", type=_json_object, default={}, metavar="JSON", help="further options of /infer, an object"
    )
    run.add_argument("--prefix", default="", metavar="TEXT", help="before the names of result columns")
    run.add_argument("--format", choices=("parquet", "csv", "jsonl"), help="of the files in an OUTPUT folder")
    run.add_argument(
        "--errors", type=Path, metavar="FILE", help="JSON Lines of bad rows; default: the first ends the run"
    )
    run.add_argument(
        "--into",
        metavar="COLLECTION",
        help="insert the embeddings too, into a collection at --url, or of --config if no server has it open",
    )
    run.add_argument(
        "--id", metavar="COLUMN", help="with --into: the ids, texts or integers; default with --images: the paths"
    )
    run.add_argument("--metadata", default="", metavar="NAMES", help="with --into: columns, comma-separated")
    run.add_argument(
        "--window", type=int, metavar="N", help="rows sorted by length; default: 4096, and 256 with files or messages"
    )
    run.add_argument("--restart", action="store_true", help="forget an earlier run and replace its output")
    run.add_argument("--config", type=Path, metavar="FILE", help="settings of devices, scheduling and models")
    run.add_argument("--url", type=server_url, help="send to this running server instead")
    run.add_argument("--concurrency", type=int, default=8, metavar="N", help="requests at a time to --url; default: 8")
    run.add_argument("--cacert", metavar="FILE", help="PEM file of the authorities for https; default: the system's")
    run.add_argument("--api-key", metavar="KEY", help="for --url; default: ROUNDHOUSE_API_KEY")
    add_ray_options(run)
    run.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        from extensions.offline.chosen_rows import job_of
        from extensions.offline.contract import RunFailed, WrongCommand
        from extensions.offline.job import run_job
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        print(f"run: expected the extra data, got none; {install_command('data')}", file=sys.stderr)
        return 1
    from app.cli.fetch import FetchFailed
    from app.config import ConfigError

    async def work(local: "tuple[LoadedSettings, str] | None") -> "RunResult":
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        async with _open_model(options, local) as (model, make_runner), _open_into(options, local, model) as into:
            job = job_of(options, model.description, into)
            return await run_job(job, model, sys.stderr, make_runner and make_runner(job))

    try:
        local = None if options.url is not None else _local_settings(options)
        # Ray sets handlers of signals; those of the event loop replace them.
        with cluster_of(options):
            result = asyncio.run(work(local))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print(INTERRUPTED, file=sys.stderr)
        return INTERRUPTED_STATUS
    except (ConfigError, WrongCommand) as error:
        print(error, file=sys.stderr)
        return 2
    except (RunFailed, FetchFailed) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{result.rows:,} rows, {result.bad:,} of them bad", file=sys.stderr)
    return BAD_ROWS_STATUS if result.bad else 0


@asynccontextmanager
async def _open_model(
    options: argparse.Namespace, local: "tuple[LoadedSettings, str] | None"
) -> AsyncIterator["tuple[RunModel, Callable[[RunJob], WindowsRunner] | None]"]:
    """Load the model `local`, or connect to the server that has it. A function for runs on Ray makes their runner."""
    if local is None:
        model = await asyncio.to_thread(_connect, options)
        try:
            yield model, None
        finally:
            await asyncio.to_thread(model.close)
        return
    if options.ray is not None:
        async with open_on_ray(options, *local) as on_ray:
            yield on_ray
        return
    from extensions.offline.local_model import open_local_model

    async with open_local_model(*local) as opened:
        yield opened, None


@asynccontextmanager
async def _open_into(
    options: argparse.Namespace, local: "tuple[LoadedSettings, str] | None", model: "RunModel"
) -> "AsyncIterator[Into | None]":
    """Open the collection of --into, or connect to that of the server; None without the option."""
    from extensions.offline.contract import WrongCommand
    from extensions.offline.input.media_folder import COLUMN
    from extensions.offline.output.into import Into, RemoteSink, open_sink
    from extensions.offline.served_model import ServerModel

    if options.into is None:
        for name in ("id", "metadata"):
            if getattr(options, name):
                raise WrongCommand(f"--{name}: expected --into with it, got none; leave it out or say --into")
        yield None
        return
    if options.columns:
        raise WrongCommand("--into: expected texts or images, got --columns; say --column, --files or --file-column")
    # The paths of a folder's files differ, as ids must.
    ids = options.id or (COLUMN if options.files else None)
    if ids is None:
        raise WrongCommand("--into: expected --id with it, got none; name the column of the ids")
    metadata = tuple(name.strip() for name in options.metadata.split(",") if name.strip())
    if isinstance(model, ServerModel):
        yield Into(RemoteSink(options.into, model.post), ids, options.column, metadata)
        return
    assert local is not None
    async with open_sink(local[0], options.into) as sink:
        yield Into(sink, ids, options.column, metadata)


def _local_settings(options: argparse.Namespace) -> "tuple[LoadedSettings, str]":
    """Return the settings with the model to run only, and its name. The files of an address are fetched first."""
    from app.cli.fetch import fetch_framework
    from app.cli.model_paths import with_models
    from app.config import ConfigError, load_settings
    from app.observability.logs.logs import configure_logging
    from extensions.offline.contract import WrongCommand
    from extensions.offline.local_model import models_of, with_one_model
    from frameworks.core.addresses import SourceAddress

    configure_logging("warning", "auto", sys.stderr)
    loaded = load_settings(config_file(options.config, [options.model]), os.environ, {})
    models = loaded.settings.models
    fetch = partial(fetch_framework, loaded)
    names = models_of(loaded, options.model)
    is_known = any(options.model in each.names for _, each in loaded.settings.composites())
    for framework, entries in (("onnx", models.onnx_models), ("pytorch", models.torch_models)):
        for entry in entries:
            if not names.isdisjoint(entry.names):
                if isinstance(entry.path, SourceAddress):
                    fetch(entry.path, "onnx" if framework == "onnx" else "pytorch")
                is_known = True
    if is_known:
        return with_one_model(loaded, options.model), options.model
    none = models.model_copy(update={"onnx_models": (), "torch_models": ()})
    without: dict[str, Any] = {table: () for table, _ in loaded.settings.composites()}
    settings = loaded.settings.model_copy(update={"models": none} | without)
    try:
        loaded = replace(loaded, settings=with_models(settings, [options.model], fetch))
    except ConfigError as error:
        raise WrongCommand(_unknown_model(options, loaded.settings, error)) from error
    models = loaded.settings.models
    found = [entry.name for entry in (*models.onnx_models, *models.torch_models)]
    if len(found) > 1:
        named = ", ".join(found[:_MAX_NAMES])
        raise WrongCommand(f"MODEL: expected one model, got a folder of {len(found)}: {named}; name the folder of one")
    return with_one_model(loaded, found[0]), found[0]


def _unknown_model(options: argparse.Namespace, settings: "Settings", error: "ConfigError") -> str:
    """Return the message for a MODEL that is not known, with the names that would be."""
    if any(issue.kind != "not_found" for issue in error.issues):
        return "\n".join(f"MODEL: {issue.message}" for issue in error.issues)
    names = [entry.name for entry in (*settings.models.onnx_models, *settings.models.torch_models)]
    names += [composite.name for _, composite in settings.composites()]
    known = ", ".join(names[:_MAX_NAMES])
    got = f'"{options.model}"' + (f", which is none of {known} in the config" if known else "")
    return (
        f"MODEL: expected the path or address of a model, got {got}; correct it, or say --url for a model of a running "
        "server, or --config for one of a config file"
    )


def _connect(options: argparse.Namespace) -> "ServerModel":
    from app.cli.client import TlsOptions, WrongPemFile, credentials, tls_context
    from app.config import API_KEY_VARIABLE
    from extensions.offline.contract import WrongCommand
    from extensions.offline.served_model import ServerModel

    if options.concurrency < 1:
        raise WrongCommand(f"--concurrency: expected 1 or more, got {options.concurrency}")
    key = os.environ.get(API_KEY_VARIABLE, "") if options.api_key is None else options.api_key
    try:
        tls = tls_context(TlsOptions(options.cacert)) if options.url.startswith("https://") else None
    except WrongPemFile as error:
        raise WrongCommand(str(error)) from error
    try:
        headers = credentials("GET", options.url, b"", key, is_signed=False)
    except ValueError as error:
        raise WrongCommand(f"--api-key: {error}") from error
    note = partial(print, file=sys.stderr, flush=True)
    return ServerModel(options.url, options.model, headers, tls, options.concurrency, note=note)


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got {text}")
    return value
