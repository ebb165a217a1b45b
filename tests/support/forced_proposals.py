"""In a server that tests start: speculation proposes tokens whatever they cost, so that no test depends on a speed."""

import os

ENVIRON = {"TEST_FORCED_PROPOSALS": "1"}
"""The environment of such a server. It has no effect on a process of its own that a model runs in."""


def force_proposals_if_asked() -> None:
    """Let proposed tokens save time even if they are wrong, if the environment asks for it."""
    if not ENVIRON.items() <= os.environ.items():
        return
    from frameworks.scheduling.speculation.gain import ProposalCost

    ProposalCost.of_token = lambda self, decodes, proposed: -0.1 / proposed  # type: ignore[method-assign]
