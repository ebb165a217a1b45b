"""`roundhouse deploy`: run the server on a Ray cluster, and wait until its models are ready."""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.parser import add_command
from frameworks.core.extras import install_command

if TYPE_CHECKING:
    from ray import serve

    from app.config import LoadedSettings

_EXAMPLE = "roundhouse deploy config.toml\n  roundhouse deploy config.toml --address 10.0.0.1:6379"
_MISSING = f"deploy: expected the extra ray, got none; {install_command('ray')}"
_TIMEOUT_S = 1800.0
_POLL_S = 0.5
# An error of the project at the end of the traceback in Ray's message: it says what is wrong with a model.
_OWN_ERROR = re.compile(r"^frameworks\.core\.errors\.\w+: ", re.MULTILINE)
_FAILED = ("DEPLOY_FAILED", "UNHEALTHY")
"""States of an application of Ray Serve."""


def add_deploy(commands: Any) -> None:
    """Add the command to the parser."""
    deploy = add_command(commands, "deploy", "Deploy the server on a Ray cluster, or update it there.", _EXAMPLE)
    deploy.add_argument("config", type=Path, metavar="CONFIG", help="config.toml, with [ray] for the deployment")
    deploy.add_argument(
        "--address",
        metavar="ADDRESS",
        help="host:port of the head of the cluster; default: RAY_ADDRESS, else the cluster of this machine, which is "
        "started where there is none",
    )
    deploy.add_argument(
        "--timeout",
        type=float,
        default=_TIMEOUT_S,
        metavar="SECONDS",
        help="limit of the wait until all models are ready; default: %(default).0f",
    )
    deploy.set_defaults(run=_deploy)


def _deploy(options: argparse.Namespace) -> int:
    from app.config import API_KEY_VARIABLE, ConfigError, load_settings

    if find_spec("ray") is None:
        print(_MISSING, file=sys.stderr)
        return 2
    from extensions.ray.checks import check_for_ray
    from extensions.ray.cluster import CannotConnect, connected
    from extensions.ray.serve_application import build_application
    from extensions.ray.settings import ray_settings
    from frameworks.core.errors import RoundhouseError

    try:
        loaded = load_settings(options.config, os.environ)
        for warning in loaded.warnings:
            print(warning, file=sys.stderr)
        check_for_ray(loaded)
        with connected(options.address):
            application = build_application(loaded, os.environ.get(API_KEY_VARIABLE, ""))
            deploy(application, ray_settings(loaded.settings).application)
            return _follow(loaded, options.timeout)
    except (ConfigError, CannotConnect, RoundhouseError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _follow(loaded: "LoadedSettings", timeout_s: float) -> int:
    """Print the states until the application runs. Returns the exit status."""
    from extensions.ray.settings import ray_settings

    server, name = loaded.settings.server, ray_settings(loaded.settings).application
    for progress in follow(name, timeout_s):
        for deployment, state in sorted(progress.deployments.items()):
            print(f"{deployment}: {state}", flush=True)
        if progress.has_failed:
            print(f"{name}: failed\n{progress.reason}", file=sys.stderr)
            return 1
        if progress.is_running:
            scheme = "http" if server.tls_certificate is None else "https"
            print(f"{name}: running at {scheme}://{server.host}:{server.port}")
            return 0
    print(f"{name}: not ready within {timeout_s:.0f} s; the deployment goes on", file=sys.stderr)
    return 1


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a deployment. `reason`: of a failure, or "". `deployments`: states by name."""

    is_running: bool
    has_failed: bool
    reason: str
    deployments: dict[str, str]


def deploy(application: "serve.Application", name: str) -> None:
    """Deploy or update the application `name`. Serve's own HTTP proxies are not started, as the ingress listens."""
    from ray import serve

    serve.start(proxy_location="Disabled")
    target = serve.RunTarget(application, name=name, route_prefix=None)
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def follow(name: str, timeout_s: float) -> Iterator[Progress]:
    """Yield the state at each change, until the application runs, has failed, or the time is over."""
    until_s = time.monotonic() + timeout_s
    last: Progress | None = None
    while last is None or not (last.is_running or last.has_failed):
        if time.monotonic() > until_s:
            return
        if last is not None:
            time.sleep(_POLL_S)
        progress = _progress(name)
        if progress != last:
            yield progress
        last = progress


def _progress(name: str) -> Progress:
    from ray import serve

    found = serve.status().applications.get(name)
    if found is None:
        return Progress(False, False, "", {})
    states = {each: str(status.status.value) for each, status in found.deployments.items()}
    has_failed = found.status in _FAILED
    messages = {each: status.message for each, status in found.deployments.items()}
    reason = explain(found.message, messages) if has_failed else ""
    return Progress(found.status == "RUNNING", has_failed, reason, states)


def explain(message: str, by_deployment: Mapping[str, str]) -> str:
    """Return why an application failed, from Ray's messages of it and of its deployments.

    Of an error of the project, such as a model without files, only its text is left, and nothing of other deployments:
    Ray starts them again, for example after the end of a node. Of any other error all is left.
    """
    explained, others = [], [message]
    for name, text in by_deployment.items():
        own = list(_OWN_ERROR.finditer(text))
        if own:
            explained.append(f"{name}: {text[own[-1].end() :].strip()}")
        elif text:
            others.append(f"{name}: {text}")
    return "\n".join(explained or others)
