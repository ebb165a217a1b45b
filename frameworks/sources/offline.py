"""Read the user's HF_HUB_OFFLINE. The PyTorch side sets the variable itself: its libraries download nothing.

This module is imported before that.
"""

import os

from frameworks.core.errors import SourceUnavailable


def is_set_offline() -> bool:
    """Return whether the variable is set now."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


IS_HUB_OFFLINE = is_set_offline()


class HubOffline(SourceUnavailable):
    """The user has switched access to hubs off: another request has the same result."""
