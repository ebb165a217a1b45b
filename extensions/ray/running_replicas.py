"""Register the running replicas of each deployment in this process: routers write, engines read."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial

from extensions.ray.handshake import Address

DeploymentKey = tuple[str, str]
"""Names of the application and of the deployment."""
Changed = Callable[[Mapping[str, Address]], None]


class RunningReplicas:
    """The running replicas of one deployment by their ids. Any thread may call its methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: Mapping[str, Address] = {}
        self._followers: dict[int, tuple[asyncio.AbstractEventLoop, Changed]] = {}
        self._numbers = 0

    @property
    def addresses(self) -> Mapping[str, Address]:
        """The latest set."""
        return self._addresses

    def publish(self, addresses: Mapping[str, Address]) -> None:
        """Replace the set."""
        with self._lock:
            if addresses == self._addresses:
                return
            self._addresses = addresses
            followers = list(self._followers.values())
            for loop, changed in followers:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(changed, addresses)

    def follow(self, changed: Changed) -> Callable[[], None]:
        """Call `changed` in this loop with each later set, and soon with the current one. Returns how to stop it."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._numbers += 1
            number = self._numbers
            self._followers[number] = (loop, changed)
            loop.call_soon(changed, self._addresses)
        return partial(self._stop, number)

    def _stop(self, number: int) -> None:
        with self._lock:
            self._followers.pop(number, None)


_deployments: dict[DeploymentKey, RunningReplicas] = {}
_lock = threading.Lock()


def running_replicas(application: str, deployment: str) -> RunningReplicas:
    """Return the running replicas of a deployment, the same object for all callers in this process."""
    with _lock:
        return _deployments.setdefault((application, deployment), RunningReplicas())
