"""Deploy the application to the cluster that this process is connected to, and follow it until it runs."""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ray import serve
from ray.serve.schema import ApplicationStatus

_POLL_S = 0.5
# An error of the project at the end of the traceback in Ray's message: it says what is wrong with a model.
_OWN_ERROR = re.compile(r"^frameworks\.core\.errors\.\w+: ", re.MULTILINE)
_FAILED = (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY)


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a deployment. `reason`: of a failure, or "". `deployments`: states by name."""

    is_running: bool
    has_failed: bool
    reason: str
    deployments: dict[str, str]


def deploy(application: serve.Application, name: str) -> None:
    """Deploy or update the application `name`. Serve's own HTTP proxies are not started, as the ingress listens."""
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
    found = serve.status().applications.get(name)
    if found is None:
        return Progress(False, False, "", {})
    states = {each: str(status.status.value) for each, status in found.deployments.items()}
    has_failed = found.status in _FAILED
    messages = {each: status.message for each, status in found.deployments.items()}
    reason = explain(found.message, messages) if has_failed else ""
    return Progress(found.status is ApplicationStatus.RUNNING, has_failed, reason, states)


def explain(message: str, by_deployment: Mapping[str, str]) -> str:
    """Return why an application failed, from Ray's messages of it and of its deployments.

    Of an error of the project, such as a model without files, only its text is left; of any other error all is.
    """
    lines, is_explained = [], False
    for name, text in by_deployment.items():
        own = list(_OWN_ERROR.finditer(text))
        if own:
            is_explained = True
            lines.append(f"{name}: {text[own[-1].end() :].strip()}")
        elif text:
            lines.append(f"{name}: {text}")
    return "\n".join(lines if is_explained else [message, *lines])
