"""Run the command line: serve, check, models, infer, keys, and the commands of extensions."""

import argparse
import json
import os
import signal
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app import server_version
from app.cli.keys import add_keys
from app.cli.lean_imports import lean_imports
from app.cli.parser import (
    INTERRUPTED,
    INTERRUPTED_STATUS,
    CommandParser,
    access_of,
    add_command,
    add_server_options,
    config_file,
    print_table,
)
from app.cli.utf8 import ensure_utf8
from app.extension import extensions

if TYPE_CHECKING:
    from app.config import LoadedSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 0, 1 for a failure, 2 for a wrong command or config."""
    is_program = arguments is None
    if arguments is None:
        ensure_utf8()
        arguments = sys.argv[1:]
    parser = _parser(arguments)
    if not arguments:
        parser.print_help()
        return 0
    options = parser.parse(arguments)
    run: Any = options.run
    status: int = run(options)
    if is_program and status == INTERRUPTED_STATUS:
        _end_beside_threads(status)
    return status


def _end_beside_threads(status: int) -> None:
    """End the process, if a thread of a load or a batch is left: the interpreter would wait for its end."""
    if threading.active_count() > 1:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


class _PrintVersion(argparse.Action):
    """As argparse's own action, which has to know the version before."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        sys.stdout.write(f"roundhouse {server_version()}\n")
        parser.exit()


def _parser(arguments: Sequence[str] = ()) -> CommandParser:
    """Return the parser. Commands of extensions are left out where the arguments name another one."""
    parser = CommandParser(
        prog="roundhouse",
        description="One server for ONNX and PyTorch models.",
        epilog="`roundhouse COMMAND --help` describes a command.",
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="show the version of the program and exit")
    commands = parser.add_commands("COMMAND")
    _add_serve(commands)
    _add_check(commands)
    _add_models(commands)
    _add_infer(commands)
    add_keys(commands)
    # The options of `run` and `bench` are many: a server does not import them.
    if not arguments or arguments[0] not in parser.commands:
        for extension in extensions():
            extension.add_commands(commands)
    return parser


def _add_serve(commands: Any) -> None:
    serve = add_command(
        commands,
        "serve",
        "Serve models until a signal ends it.",
        "roundhouse serve --config config.toml\n  roundhouse serve ./models/digits/model.onnx --port 9000\n"
        "  roundhouse serve sentence-transformers/all-MiniLM-L6-v2",
    )
    serve.add_argument(
        "models",
        nargs="*",
        metavar="MODEL_PATH",
        help="an .onnx or .gguf file, a folder with model.onnx or *.safetensors, a folder of such folders, org/name of "
        "a hub, or an address like hf://…",
    )
    serve.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="default: ROUNDHOUSE_CONFIG, else ./config.toml if it exists and no MODEL_PATH is given",
    )
    serve.add_argument("--host", help="overrides server.host")
    serve.add_argument("--port", type=int, help="overrides server.port; 0 takes any free port")
    serve.add_argument("--grpc-port", type=int, help="overrides server.grpc_port; 0 switches gRPC off")
    serve.add_argument(
        "--self-signed", action="store_true", help="serve over TLS with a new certificate, to try it out"
    )
    serve.set_defaults(run=_serve)


def _add_check(commands: Any) -> None:
    check = add_command(
        commands, "check", "Report every error and warning of a config file.", "roundhouse check config.toml"
    )
    check.add_argument("file", type=Path)
    check.add_argument("--json", action="store_true", help="print a JSON array of the issues")
    check.set_defaults(run=_check)


def _add_models(commands: Any) -> None:
    models = add_command(
        commands, "models", "List the models of a running server.", "roundhouse models --url http://127.0.0.1:8080"
    )
    models.add_argument("--json", action="store_true", help="print the whole response")
    add_server_options(models)
    models.set_defaults(run=_models)


def _add_infer(commands: Any) -> None:
    infer = add_command(
        commands,
        "infer",
        "Send one request to a running server.",
        "roundhouse infer minilm --text 'a sentence' 'another'\n"
        "  roundhouse infer digits --data '[[0, 0, 9, …]]'\n"
        "  roundhouse infer tiny-llama --prompt 'The module' --max-tokens 40\n"
        "  roundhouse infer shapes --image photo.jpg --top-k 3\n"
        "  roundhouse infer digits --body @request.json",
    )
    infer.add_argument("name", metavar="NAME", help="the model")
    request = infer.add_mutually_exclusive_group(required=True)
    request.add_argument("--text", nargs="+", help="texts for an embed or classify model")
    request.add_argument("--image", nargs="+", metavar="FILE", help="image files for a model of images")
    request.add_argument("--prompt", help="text that a language model continues")
    request.add_argument("--message", help="message of the user to a language model with a chat template")
    request.add_argument(
        "--data", metavar="JSON", help="input_data, flat or nested; @FILE reads a file, @- standard input"
    )
    request.add_argument("--inputs", metavar="JSON", help="named tensors; @FILE as for --data")
    request.add_argument("--body", metavar="JSON", help="the whole request; @FILE as for --data")
    infer.add_argument(
        "--max-tokens", type=int, metavar="N", help="with --prompt or --message: maximum generated tokens"
    )
    infer.add_argument("--top-k", type=int, metavar="N", help="with --text or --image: number of labels")
    infer.add_argument("--json", action="store_true", help="print errors as JSON too")
    add_server_options(infer)
    infer.set_defaults(run=_infer)


def _serve(options: argparse.Namespace) -> int:
    with _signals_end_process():
        with lean_imports():
            from app.cli.fetch import FetchFailed, fetch_framework
            from app.cli.model_paths import with_models
            from app.config import API_KEY_VARIABLE, ConfigError, load_settings
            from app.http.listener.sockets import CannotListenError
            from app.server.process import serve
            from app.server.start_report import StartOptions

        if not sys.stderr:
            # Started with standard error closed. A socket must not get its number: C libraries write to it.
            sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the process ends
        overrides: dict[str, object] = {}
        if options.host is not None:
            overrides["server.host"] = options.host
        if options.port is not None:
            overrides["server.port"] = options.port
        if options.grpc_port is not None:
            overrides["server.grpc_port"] = options.grpc_port
        try:
            loaded = load_settings(config_file(options.config, options.models), os.environ, overrides)
            fetch = partial(fetch_framework, loaded)
            notes: list[str] = []
            loaded = replace(loaded, settings=with_models(loaded.settings, options.models, fetch, notes.append))
            # Removed, so that no child process inherits it.
            api_key = os.environ.pop(API_KEY_VARIABLE, "")
            with ExitStack() as stack:
                if options.self_signed:
                    loaded = _with_certificate(loaded, stack)
                return serve(loaded, StartOptions(sys.stderr.isatty(), bool(options.models), api_key, tuple(notes)))
        except KeyboardInterrupt:
            print(INTERRUPTED, file=sys.stderr)
            return INTERRUPTED_STATUS
        except (ConfigError, CannotListenError, FetchFailed) as error:
            print(error, file=sys.stderr)
            return 2 if isinstance(error, ConfigError) else 1


def _with_certificate(loaded: "LoadedSettings", stack: ExitStack) -> "LoadedSettings":
    """Return the settings with a new certificate, and print how clients check it. Raises ConfigError."""
    from app.cli.self_signed import self_signed

    made = stack.enter_context(self_signed(loaded))
    print(
        f"self-signed certificate: {made.certificate}\nSHA-256 fingerprint: {made.fingerprint}\n"
        f"clients: curl --cacert {made.certificate}, roundhouse models --cacert {made.certificate}",
        file=sys.stderr,
    )
    return made.loaded


@contextmanager
def _signals_end_process() -> Iterator[None]:
    """Exit with status 0 at SIGINT and SIGTERM, until the server handles signals itself.

    As the first process of a container this process would ignore SIGTERM without a handler.
    """
    before = {number: signal.signal(number, lambda *_: sys.exit(0)) for number in (signal.SIGINT, signal.SIGTERM)}
    if hasattr(signal, "SIGHUP"):  # Windows has none
        # It ends nothing. Files that changed until now are read in any case.
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda *_: None)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check(options: argparse.Namespace) -> int:
    from app.config import API_KEY_VARIABLE, check_file, load_settings
    from app.server.keys import key_issues

    issues = check_file(options.file, os.environ)
    if not any(issue.is_error for issue in issues):
        loaded = load_settings(options.file, os.environ)
        issues += key_issues(loaded, os.environ.get(API_KEY_VARIABLE, ""))
    if options.json:
        print(json.dumps([asdict(issue) | {"is_error": issue.is_error} for issue in issues], indent=2, default=str))
    else:
        for issue in issues:
            print(issue)
        if not issues:
            print(f"{options.file}: no issues")
    return 2 if any(issue.is_error for issue in issues) else 0


def _models(options: argparse.Namespace) -> int:
    from app.cli.client import call, print_failure
    from memory.sizes import format_size

    status, response = call(options.url, "GET", "/models", **access_of(options))
    if status != 200:
        return print_failure(response, options.json)
    if options.json:
        print(json.dumps(response, indent=2))
        return 0
    rows: list[tuple[str, ...]] = [("NAME", "FRAMEWORK", "TASK", "STATE", "DEVICE", "DTYPE", "MEMORY")]
    for model in response["models"]:
        memory = format_size(model["memory_bytes"]) if model["memory_bytes"] is not None else "-"
        rows.append((*(model[key] or "-" for key in ("name", "framework", "task", "state", "device", "dtype")), memory))
    print_table(rows)
    return 0


def _infer(options: argparse.Namespace) -> int:
    from app.cli.client import call, failure, print_failure

    try:
        body: Any
        if options.text is not None:
            body = {"text": options.text}
        elif options.image is not None:
            body = {"image": [_read("--image", file, is_text=False) for file in options.image]}
        elif options.prompt is not None or options.message is not None:
            body = _generation(options)
        elif options.body is not None:
            body = _json_argument("--body", options.body)
        elif options.data is not None:
            body = {"input_data": _json_argument("--data", options.data)}
        else:
            body = {"inputs": _json_argument("--inputs", options.inputs)}
    except ValueError as error:
        print_failure(failure("invalid_input", str(error)), options.json)
        return 2
    if options.top_k is not None and (options.text is not None or options.image is not None):
        body["top_k"] = options.top_k
    status, response = call(options.url, "POST", f"/models/{options.name}/infer", body, **access_of(options))
    if status != 200:
        return print_failure(response, options.json)
    print(json.dumps(response))
    return 0


def _generation(options: argparse.Namespace) -> dict[str, Any]:
    body: dict[str, Any] = {} if options.max_tokens is None else {"max_tokens": options.max_tokens}
    if options.prompt is not None:
        return body | {"prompt": options.prompt}
    return body | {"messages": [{"role": "user", "content": options.message}]}


def _read(option: str, file: str, is_text: bool) -> str:
    """Return the text of a file, or its content in base64. Raises ValueError, which names the option."""
    from app.cli.failures import unusable

    try:
        return Path(file).read_text(encoding="utf-8") if is_text else b64encode(Path(file).read_bytes()).decode("ascii")
    except (OSError, ValueError) as error:
        raise ValueError(f"{option}: expected a file, got {unusable(file, error)}; correct the path") from error


def _json_argument(option: str, argument: str) -> Any:
    """Return the decoded argument, or that of the file behind @. Raises ValueError, which names the option."""
    if argument == "@-":
        text = sys.stdin.read()
    else:
        text = _read(option, argument[1:], is_text=True) if argument.startswith("@") else argument
    try:
        return json.loads(text)
    except ValueError as error:
        where = f" in {argument[1:]}" if argument.startswith("@") else ""
        where = " on standard input" if argument == "@-" else where
        raise ValueError(f"{option}: expected JSON{where}, got another text ({error}); @FILE reads a file") from None


if __name__ == "__main__":
    sys.exit(main())
