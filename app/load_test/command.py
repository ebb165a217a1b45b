"""Run one load test from its options to its files."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.load_test.connection import Address
from app.load_test.inputs import Body, CannotMake, Made, bodies_of_file, made_bodies
from app.load_test.page import html_page
from app.load_test.report import result
from app.load_test.run import Plan, Run
from app.load_test.screen import show, table
from app.load_test.target import Credentials, NoTarget, RequestWriter, Target, find_target

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that the command line says."""

    address: Address
    credentials: Credentials
    is_signed: bool
    protocol: str | None
    model: str | None
    plan: Plan
    made: Made
    input_file: Path | None
    json_file: Path | None
    html_file: Path | None


def run_command(options: Options) -> int:
    """Return the exit status: 0, 1 if no request succeeded or the server cannot be measured, 2 for a wrong option.

    Raises OSError and ValueError for an option that cannot be used.
    """
    # Found before the run, not after it.
    for file in (options.json_file, options.html_file):
        if file is not None and not file.absolute().parent.is_dir():
            raise ValueError(f"expected a file in an existing folder, got {file}")
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


async def _run(options: Options) -> int:
    writer = RequestWriter(options.address, options.credentials, options.is_signed)
    target = await find_target(options.address, writer, options.protocol, options.model, options.plan.timeout_s)
    run = Run(options.plan, target, writer, _bodies(options, target))
    started = datetime.now(UTC).isoformat(timespec="seconds")
    cpu_part = await _go(run, options.plan, target)
    found = result(run, options.plan, target, cpu_part, started)
    if options.json_file is not None:
        options.json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.html_file is not None:
        options.html_file.write_text(html_page(found), encoding="utf-8")
    for warning in found["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    return 0 if run.tally.succeeded else 1


def _bodies(options: Options, target: Target) -> list[Body]:
    if options.input_file is not None:
        return bodies_of_file(options.input_file, target.protocol, target.model)
    return made_bodies(target.protocol, target.model, target.description, options.made)


async def _go(run: Run, plan: Plan, target: Target) -> float:
    """Run, show it, and print the result. Returns the part of a core that the load generator used."""
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        with suppress(NotImplementedError):
            loop.add_signal_handler(number, run.interrupt)
    shown = loop.create_task(show(run, sys.stderr, lambda: table(run, plan, target, time.monotonic())))
    try:
        await run.go()
        end_s = time.monotonic()
        cpu_part = run.tally.cpu_part(end_s)
    finally:
        shown.cancel()
        with suppress(asyncio.CancelledError, OSError):
            await shown
        for number in _SIGNALS:
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)
    if not (sys.stderr.isatty() and sys.stdout.isatty()):
        # A terminal already shows the table.
        print("\n".join(table(run, plan, target, end_s)))
    return cpu_part
