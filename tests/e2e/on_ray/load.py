"""Load by clients that retry twice, as those of OpenAI do."""

import itertools
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import httpx

from tests.e2e.server import WAIT_S, wait_until

_CLIENTS = 4
_RETRIES = 2
_FIRST_DELAY_S = 0.5
_RETRIED = (408, 409, 429)
_PAUSE_S = 0.01


class RetriedLoad:
    """Clients that send idempotent requests within the block, at most a few hundred in a second."""

    def __init__(
        self,
        url: str,
        model: str,
        body: Callable[[int], dict[str, Any]],
        is_right: Callable[[int, Any], bool] = lambda _number, _answer: True,
        pause_s: float = _PAUSE_S,
    ) -> None:
        """`body`: returns that of a request by its number. A request that ends two replicas is refused for a while.

        `is_right`: whether the JSON of an answer is right, by the number of its request. `pause_s`: of each client.
        """
        self._url = f"{url}/models/{model}/infer"
        self._body = body
        self._is_right = is_right
        self._pause_s = pause_s
        self._numbers = itertools.count()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(_CLIENTS)]
        self.completed = 0
        self.failures: list[str] = []
        """Requests without an answer after all retries."""

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, number: int) -> None:
        """Wait until so many more requests are completed."""
        until = self.completed + number
        wait_until(lambda: self.completed >= until)

    def _run(self) -> None:
        with httpx.Client(verify=False, trust_env=False, timeout=WAIT_S) as client:
            while not self._stop.is_set():
                failure = self._send(client)
                if failure:
                    self.failures.append(failure)
                self.completed += 1
                time.sleep(self._pause_s)

    def _send(self, client: httpx.Client) -> str | None:
        """Return why the request has failed at last; None for an answer."""
        number = next(self._numbers)
        body = self._body(number)
        failure = ""
        for attempt in range(1 + _RETRIES):
            if attempt:
                time.sleep(_FIRST_DELAY_S * 2 ** (attempt - 1))
            try:
                answer = client.post(self._url, json=body)
            except httpx.TransportError as error:
                failure = repr(error)
                continue
            if answer.status_code == 200:
                return None if self._is_right(number, answer.json()) else f"wrong answer to {number}: {answer.text}"
            failure = answer.text
            if answer.status_code < 500 and answer.status_code not in _RETRIED:
                break
        return failure
