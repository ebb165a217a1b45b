"""Report to the supervisor how a worker uses the models: references, last use, and counts of models that run here."""

import asyncio
from collections.abc import Mapping

from frameworks.replicas.control import ControlLink
from frameworks.replicas.messages import LocalCounts, Uses, VersionUse
from frameworks.replicas.serving import Serving

PERIOD_S = 0.25
"""Time between two reports."""


class UseReports:
    """Sends only what has changed. Owned by the event loop."""

    def __init__(self, link: ControlLink, servings: Mapping[int, Serving]) -> None:
        """`servings`: the loads of the worker, by number."""
        self._link = link
        self._servings = servings
        self._sent: dict[int, VersionUse] = {}
        self._start_timer()

    def close(self) -> None:
        """Report no more."""
        self._timer.cancel()

    def report_counts(self, serving: Serving) -> None:
        """Send the growth of the counts of a model that runs here."""
        counts = serving.growth.take(())
        if counts is not None:
            prepare = serving.prepare
            self._link.send(LocalCounts(prepare.name, prepare.version, counts.batches, counts.steps))

    def report(self) -> None:
        """Report all changes now."""
        uses: dict[int, VersionUse] = {}
        for number, serving in self._servings.items():
            version = serving.version
            if version is not None:
                uses[number] = VersionUse(number, version.references, version.last_used_s)
            self.report_counts(serving)
        changed = [use for number, use in uses.items() if self._sent.get(number) != use]
        self._sent = uses
        if changed:
            self._link.send(Uses(changed))

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self._report_again)

    def _report_again(self) -> None:
        self._start_timer()
        self.report()
