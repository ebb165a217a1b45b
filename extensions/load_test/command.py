"""Run one load test from its options to its files."""

import asyncio
import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from extensions.load_test.client import Client
from extensions.load_test.connection import ServerAddress
from extensions.load_test.http_calls import HttpClient
from extensions.load_test.inputs.bodies import RequestContent, bodies_of_file, made_bodies
from extensions.load_test.inputs.tensors import CannotMake, Made
from extensions.load_test.report import result
from extensions.load_test.results.page import html_page
from extensions.load_test.run import LoadPlan, LoadRun
from extensions.load_test.screen import SHOW_CURSOR, show, table
from extensions.load_test.target import Credentials, LoadTarget, NoTarget, RequestWriter, Wanted, find_target
from frameworks.core.extras import install_command


@dataclass(frozen=True, slots=True)
class LoadTestOptions:
    """Everything that the command line says."""

    address: ServerAddress
    credentials: Credentials
    is_signed: bool
    wanted: Wanted
    plan: LoadPlan
    made: Made
    input_file: Path | None
    json_file: Path | None
    html_file: Path | None


def run_command(options: LoadTestOptions) -> int:
    """Return the exit status: 0, 1 if no request succeeded or the server cannot be measured, 2 for a wrong option.

    Raises OSError and ValueError for an option that cannot be used.
    """
    # Found before the run, not after it.
    for option, file in (("--json", options.json_file), ("--html", options.html_file)):
        if file is not None and not _is_writable(file.absolute()):
            what = f"the folder {file}" if file.is_dir() else str(file)
            why = "" if file.absolute().parent.is_dir() else f", but there is no folder {file.parent}"
            raise ValueError(f"{option}: expected a file that can be written, got {what}{why}; name another one")
    try:
        return _runner()(_run(options))
    except (NoTarget, CannotMake) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # Before the run: there is no result yet.
        return 130


def _runner() -> Callable[[Coroutine[Any, Any, int]], int]:
    if sys.platform == "win32":
        return asyncio.run
    import uvloop

    return uvloop.run


async def _run(options: LoadTestOptions) -> int:
    client = await _client(options)
    target = client.target
    run = LoadRun(options.plan, client, _bodies(options, target))
    started = datetime.now(UTC).isoformat(timespec="seconds")
    with interrupting(run.interrupt):
        cpu_part = await _go(run, options.plan, target)
        found = result(run, options.plan, target, cpu_part, started)
        is_written = _write(options, found)
    for warning in found["warnings"]:
        print(_wrapped(f"warning: {warning}"), file=sys.stderr)
    return 0 if run.tally.succeeded and is_written else 1


def _wrapped(text: str) -> str:
    """Break the lines of a sentence between words on a terminal; logs have one line."""
    if not sys.stderr.isatty():
        return text
    columns = os.get_terminal_size(sys.stderr.fileno()).columns
    return textwrap.fill(text, max(20, columns), break_on_hyphens=False) if columns else text


def _is_writable(file: Path) -> bool:
    if file.exists():
        return not file.is_dir() and os.access(file, os.W_OK)
    return file.parent.is_dir() and os.access(file.parent, os.W_OK)


def _write(options: LoadTestOptions, found: dict[str, Any]) -> bool:
    """Write the files of the result, each even if the other fails. Returns whether all are complete."""
    is_complete = True
    if options.json_file is not None:
        is_complete &= _write_text("--json", options.json_file, json.dumps(found, indent=1) + "\n")
    if options.html_file is not None:
        is_complete &= _write_text("--html", options.html_file, html_page(found))
    return is_complete


def _write_text(option: str, file: Path, text: str) -> bool:
    """Return whether the file has the text; print the error otherwise."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"{option}: expected a file that can be written, got {file}: {error.strerror}", file=sys.stderr)
        return False
    return True


async def _client(options: LoadTestOptions) -> Client:
    """Find the target. On a terminal, say so: a server may load its model first. Raises NoTarget, ValueError."""
    is_shown = sys.stderr.isatty()
    if is_shown:
        print(f"waiting for {options.address.authority}", end="\r", file=sys.stderr, flush=True)
    try:
        return await (_grpc_client if options.wanted.protocol == "grpc" else _http_client)(options)
    finally:
        if is_shown:
            print(end="\x1b[K", file=sys.stderr, flush=True)


async def _http_client(options: LoadTestOptions) -> Client:
    """Raises NoTarget, ValueError."""
    writer = RequestWriter(options.address, options.credentials, options.is_signed)
    target = await find_target(options.address, writer, options.wanted, options.plan.timeout_s)
    return HttpClient(target, writer, options.plan.timeout_s)


async def _grpc_client(options: LoadTestOptions) -> Client:
    """Raises NoTarget, ValueError."""
    if find_spec("grpc") is None:
        raise NoTarget(f"--protocol grpc: expected the extra grpc-client, got none; {install_command('grpc-client')}")
    # Before the import: gRPC writes failed connections to standard error, over the table.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from extensions.load_test.grpc_calls import CallWriter, GrpcClient, find_grpc_target

    writer = CallWriter(options.address, options.credentials, options.is_signed)
    timeout_s = options.plan.timeout_s
    target = await find_grpc_target(writer, options.wanted.model, options.made.is_streamed, timeout_s)
    return GrpcClient(target, writer, timeout_s)


def _bodies(options: LoadTestOptions, target: LoadTarget) -> list[RequestContent]:
    if options.input_file is not None:
        return bodies_of_file(options.input_file, target.protocol, target.model, target.encoding)
    return made_bodies(target.protocol, target.model, target.description, options.made, target.encoding)


async def _go(run: LoadRun, plan: LoadPlan, target: LoadTarget) -> float:
    """Run, show it, and print the result. Returns the part of a core that the load generator used."""
    shown = asyncio.create_task(show(run, sys.stderr, lambda: table(run, plan, target, time.monotonic())))
    try:
        await run.go()
        end_s = time.monotonic()
        cpu_part = run.tally.cpu_part(end_s)
    finally:
        shown.cancel()
        with suppress(asyncio.CancelledError, OSError):
            await shown
    if not (sys.stderr.isatty() and sys.stdout.isatty()):
        # A terminal already shows the table.
        print("\n".join(table(run, plan, target, end_s)), flush=True)
    return cpu_part


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupting(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call `interrupt` in the event loop at the first SIGINT or SIGTERM; end the process at the second.

    The handlers are those of the process: they work while a terminal or a file blocks the event loop.
    """
    loop = asyncio.get_running_loop()
    is_first = True

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal is_first
        if not is_first:
            _end_process(number)
        is_first = False
        loop.call_soon_threadsafe(interrupt)

    previous: dict[signal.Signals, Any] = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end_process(number: int) -> NoReturn:
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), SHOW_CURSOR.encode())
    os._exit(128 + number)
