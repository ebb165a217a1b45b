"""`roundhouse deploy`: run the server on a Ray cluster, and wait until its models are ready."""

import argparse
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.parser import add_command
from frameworks.core.extras import install_command

if TYPE_CHECKING:
    from app.config import LoadedSettings

_EXAMPLE = "roundhouse deploy config.toml\n  roundhouse deploy config.toml --address 10.0.0.1:6379"
_MISSING = f"deploy: expected the extra ray, got none; {install_command('ray')}"
_TIMEOUT_S = 1800.0


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
    from extensions.ray.cluster import connected
    from extensions.ray.cluster_connection import CannotConnect
    from extensions.ray.deploying import deploy
    from extensions.ray.serve_application import build_application
    from frameworks.core.errors import RoundhouseError

    try:
        loaded = load_settings(options.config, os.environ)
        for warning in loaded.warnings:
            print(warning, file=sys.stderr)
        check_for_ray(loaded)
        with connected(options.address):
            application = build_application(loaded, os.environ.get(API_KEY_VARIABLE, ""))
            deploy(application, loaded.settings.ray.application)
            return _follow(loaded, options.timeout)
    except (ConfigError, CannotConnect, RoundhouseError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _follow(loaded: "LoadedSettings", timeout_s: float) -> int:
    """Print the states until the application runs. Returns the exit status."""
    from extensions.ray.deploying import follow

    server, name = loaded.settings.server, loaded.settings.ray.application
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
